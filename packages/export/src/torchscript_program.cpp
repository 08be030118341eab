// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/torchscript_program.h"

#include <tessera/common/json_text.h>
#include <tessera/common/shorten.h>

#include "packages/export/src/pt2/graph_json.h"
#include "packages/export/src/pt2/signature_json.h"
#include "serialization/mapped_file.h"
#include "src/common/check.h"
#include "src/common/checksum.h"
#include "src/common/error_reason.h"

#include <ATen/core/grad_mode.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>

namespace tessera::exporting {

namespace jit = torch::jit;

namespace {

constexpr const char* kScriptProgram = "[TorchScriptProgram]";
constexpr const char* kExtraFile = "tessera.json";
constexpr int64_t kFormatVersion = 1;

// LibTorch reads no checksums of an archive, so the whole file has one.
void check_bytes(const std::string& path, const std::string& place) {
  const MappedFile file(path, kScriptProgram);
  std::string_view bytes = file.text();
  std::string problem = "it has no checksum at its end";
  try {
    if (take_checksum_ending(bytes)) {
      return;
    }
  } catch (const c10::ValueError& error) {
    problem = reason_of(error);
  }
  TESSERA_CHECK_VALUE(
      false, "{} the file is damaged: {}. Use another copy.", place, problem);
}

std::string read_extra_file(const std::string& path, const std::string& place) {
  std::string text;
  bool is_found = false;
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    const std::string record = std::string("extra/") + kExtraFile;
    is_found = reader.hasRecord(record);
    if (is_found) {
      const auto [data, size] = reader.getRecord(record);
      text.assign(static_cast<const char*>(data.get()), size);
    }
  } catch (const std::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} expected a TorchScript file, but it can't be read: {}. Use another copy.",
        place,
        reason_of(error));
  }
  TESSERA_CHECK_VALUE(
      is_found,
      "{} the TorchScript model has no signature. Export it with export_dense_torchscript().",
      place);
  return text;
}

jit::Module load_module(const std::string& path, const std::string& place) {
  try {
    return jit::load(path, at::kCPU);
  } catch (const std::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} LibTorch can't load the model: {}. Use the release of LibTorch that wrote it, or a newer one.",
        place,
        reason_of(error));
    throw;
  }
}

// The object that holds an attribute, and the attribute's own name.
std::pair<jit::Module, std::string> owner_of(
    jit::Module module,
    std::string_view path) {
  for (size_t dot = path.find('.'); dot != std::string_view::npos;
       dot = path.find('.')) {
    const jit::IValue child = module.attr(std::string(path.substr(0, dot)));
    // copy_objects() copies no other objects, so programs would share them.
    TESSERA_CHECK_VALUE(
        child.isModule(),
        "{} the attribute '{}' must belong to a module. Export the model again.",
        kScriptProgram,
        shorten(std::string(path)));
    module = child.toModule();
    path.remove_prefix(dot + 1);
  }
  return {module, std::string(path)};
}

at::Tensor tensor_at(const jit::Module& module, const std::string& path) {
  const auto [owner, name] = owner_of(module, path);
  return owner.attr(name).toTensor();
}

// A copy of the module's objects, which shares code and tensors. jit::Module::copy() shares
// the objects of submodules, too.
jit::Module copy_objects(
    const jit::Module& module,
    std::map<const void*, jit::Module>& copies) {
  const void* key = module._ivalue().get();
  if (const auto found = copies.find(key); found != copies.end()) {
    return found->second;
  }
  jit::Module copy = module.copy();
  copies.emplace(key, copy);
  for (const jit::NameModule& child : module.named_children()) {
    copy.setattr(child.name, copy_objects(child.value, copies)._ivalue());
  }
  return copy;
}

// The only unknown size of a dense part is the number of candidates.
std::vector<InputCheck::Sizes> sizes_of(const std::vector<Pt2Value>& inputs) {
  std::vector<InputCheck::Sizes> sizes;
  for (const Pt2Value& input : inputs) {
    sizes.emplace_back();
    for (const std::optional<int64_t>& size : input.shape) {
      sizes.back().push_back(
          size ? pt2::Polynomial(*size) : pt2::Polynomial::symbol(0));
    }
  }
  return sizes;
}

void check_value(const Pt2Value& value, const std::string& place) {
  TESSERA_CHECK_VALUE(
      value.part.empty() || value.part == "activations" ||
          value.part == "row_splits",
      "{} '{}' must have the part 'activations', 'row_splits' or '', but has '{}'. Export the model again.",
      place,
      shorten(value.name),
      shorten(value.part));
  int64_t numbers = 1;
  for (const std::optional<int64_t>& size : value.shape) {
    TESSERA_CHECK_VALUE(
        size.value_or(1) >= 0 &&
            !__builtin_mul_overflow(
                numbers, std::max<int64_t>(size.value_or(1), 1), &numbers),
        "{} '{}' must have sizes >= 0 whose product fits into 64 bits, but has the size {}. Export the model again.",
        place,
        shorten(value.name),
        size.value_or(1));
  }
}

void check_signature(const Pt2Signature& signature, const std::string& place) {
  for (const Pt2Value& input : signature.inputs) {
    check_value(input, place);
    TESSERA_CHECK_VALUE(
        !input.shape.empty(),
        "{} input '{}' must have at least one dimension, but has none. Export the model again.",
        place,
        shorten(input.name));
  }
  TESSERA_CHECK_VALUE(
      !signature.outputs.empty(),
      "{} the signature must have at least one output, but has none. Export the model again.",
      place);
  for (const Pt2Value& output : signature.outputs) {
    check_value(output, place);
  }
}

struct Description {
  Pt2Signature signature = {};
  std::vector<ScriptWeight> weights = {};
};

Description parse(const std::string& text, const std::string& place) {
  const Json json = parse_json(text, place);
  try {
    const int64_t version = pt2::integer_from_json(json.at("version"), place);
    TESSERA_CHECK_VALUE(
        version == kFormatVersion,
        "{} '{}' must have the version {}, but has {}. Read the file with the release of Tessera that wrote it.",
        place,
        kExtraFile,
        kFormatVersion,
        version);
    Description description{
        .signature = {
            .inputs = pt2::signature_from_json(json.at("inputs"), place),
            .outputs = pt2::signature_from_json(json.at("outputs"), place)}};
    check_signature(description.signature, place);
    for (const Json& weight : json.at("weights")) {
      description.weights.push_back(
          {.name = weight.at("name").get<std::string>(),
           .attributes =
               weight.at("attributes").get<std::vector<std::string>>()});
    }
    return description;
  } catch (const Json::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} '{}' must have the fields that export_dense_torchscript() writes, but reading it fails: {}. Export the model again.",
        place,
        kExtraFile,
        error.what());
    throw;
  }
}

// Returns whether all attributes of a weight are there, with the same sizes and dtype.
bool has_weight(const jit::Module& module, const ScriptWeight& weight) {
  try {
    const at::Tensor first = tensor_at(module, weight.attributes.at(0));
    return std::all_of(
        weight.attributes.begin(),
        weight.attributes.end(),
        [&](const std::string& attribute) {
          const at::Tensor tensor = tensor_at(module, attribute);
          return tensor.defined() && tensor.sizes() == first.sizes() &&
              tensor.scalar_type() == first.scalar_type();
        });
  } catch (const std::exception&) {
    return false;
  }
}

// Checks that the module is the one that the description is about.
void check_module(
    const jit::Module& module,
    const Description& description,
    const std::string& place) {
  const auto forward = module.find_method("forward");
  TESSERA_CHECK_VALUE(
      forward &&
          forward->num_inputs() == description.signature.inputs.size() + 1,
      "{} forward() must take the {} inputs of the signature. Export the model again.",
      place,
      description.signature.inputs.size());
  for (const ScriptWeight& weight : description.weights) {
    TESSERA_CHECK_VALUE(
        has_weight(module, weight),
        "{} the module does not have the weight '{}' of the signature. Export the model again.",
        place,
        shorten(weight.name));
  }
}

std::string describe(
    const Pt2Signature& signature,
    const std::vector<ScriptWeight>& weights,
    const std::string& where) {
  Json list = Json::array();
  for (const ScriptWeight& weight : weights) {
    list.push_back({{"name", weight.name}, {"attributes", weight.attributes}});
  }
  try {
    return Json{
        {"version", kFormatVersion},
        {"inputs", pt2::signature_json(signature.inputs)},
        {"outputs", pt2::signature_json(signature.outputs)},
        {"weights", std::move(list)}}
        .dump();
  } catch (const Json::type_error&) {
    TESSERA_CHECK_VALUE(
        false,
        "{} names and paths of features must be UTF-8. Encode them as UTF-8.",
        where);
    throw;
  }
}

}  // namespace

void write_torchscript_program(
    AtomicFile& file,
    const jit::Module& module,
    const Pt2Signature& signature,
    const std::vector<ScriptWeight>& weights,
    const std::string& where) {
  const jit::ExtraFilesMap extra_files{
      {kExtraFile, describe(signature, weights, where)}};
  Checksum checksum;
  file.write_by([&](auto write) {
    jit::ExportModule(
        module,
        [&](const void* data, size_t size) {
          checksum.add(data, size);
          return write(data, size);
        },
        extra_files);
  });
  const std::string ending = checksum_ending(checksum.digits());
  file.write(ending.data(), ending.size());
}

TorchScriptProgram::TorchScriptProgram(const std::string& path) {
  const std::string place = fmt::format("{} {}:", kScriptProgram, path);
  const std::string text = read_extra_file(path, place);
  check_bytes(path, place);
  Description description = parse(text, place);
  module_ = load_module(path, place);
  check_module(module_, description, place);
  InputCheck check(
      description.signature.inputs,
      sizes_of(description.signature.inputs),
      kScriptProgram);
  content_ = std::make_shared<const Content>(Content{
      .signature = std::move(description.signature),
      .weights = std::move(description.weights),
      .check = std::move(check)});
}

std::vector<at::Tensor> TorchScriptProgram::run(
    const std::vector<at::Tensor>& inputs) const {
  check(inputs);
  const at::NoGradGuard no_grad;
  // Without this, the first calls compile the program, which gains nothing.
  const jit::GraphOptimizerEnabledGuard no_optimizations(false);
  jit::Stack arguments(inputs.begin(), inputs.end());
  jit::IValue result;
  try {
    result = module_.get_method("forward")(std::move(arguments));
  } catch (const std::exception& error) {
    TESSERA_CHECK(
        false,
        "{} forward() failed on inputs that fit the signature: {}. Export the model again.",
        kScriptProgram,
        reason_of(error));
  }
  TESSERA_CHECK_VALUE(
      result.isTensor() || result.isTensorList(),
      "{} forward() must give a tensor or a list of tensors, but gives {}. Export the model again.",
      kScriptProgram,
      result.tagKind());
  std::vector<at::Tensor> outputs = result.isTensor()
      ? std::vector<at::Tensor>{result.toTensor()}
      : result.toTensorVector();
  TESSERA_CHECK_VALUE(
      outputs.size() == signature().outputs.size(),
      "{} forward() must give the {} outputs of the signature, but gives {}. Export the model again.",
      kScriptProgram,
      signature().outputs.size(),
      outputs.size());
  return outputs;
}

std::vector<std::pair<std::string, at::Tensor>> TorchScriptProgram::state_dict()
    const {
  std::vector<std::pair<std::string, at::Tensor>> weights;
  for (const ScriptWeight& weight : content_->weights) {
    weights.emplace_back(
        weight.name, tensor_at(module_, weight.attributes[0]).detach());
  }
  return weights;
}

TorchScriptProgram TorchScriptProgram::with_weights(
    const std::map<std::string, at::Tensor>& weights) const {
  TorchScriptProgram program = *this;
  std::map<const void*, jit::Module> copies;
  program.module_ = copy_objects(module_, copies);
  for (const ScriptWeight& weight : content_->weights) {
    const at::Tensor tensor = checked_weight(
        weights,
        weight.name,
        tensor_at(module_, weight.attributes[0]),
        kScriptProgram);
    for (const std::string& attribute : weight.attributes) {
      auto [owner, name] = owner_of(program.module_, attribute);
      owner.setattr(name, tensor);
    }
  }
  return program;
}

bool is_torchscript(const std::string& path) {
  try {
    return caffe2::serialize::PyTorchStreamReader(path).hasRecord(
        "constants.pkl");
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace tessera::exporting
