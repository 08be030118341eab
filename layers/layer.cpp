// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/layer.h>

#include "src/common/check.h"
#include "src/common/checked_archive.h"
#include "src/common/tensor_text.h"
#include "src/common/text.h"

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>
#include <tessera/serialization/config_values.h>

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/util/Type.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <ostream>
#include <vector>

namespace tessera {

namespace {

constexpr const char* kInputShape = "input_shape";

// The name of the class without its namespace and "Impl", such as "Linear".
std::string class_of(const torch::nn::Module& module) {
  if (const auto* layer = dynamic_cast<const Layer*>(&module)) {
    return layer->class_name();
  }
  std::string name = module.name();
  name = name.substr(name.rfind(':') + 1);
  return name.ends_with("Impl") ? name.substr(0, name.size() - 4) : name;
}

std::string shapes_text(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += text.empty() ? "" : " ";
    text +=
        to_string(PartialShape(tensor.sizes().begin(), tensor.sizes().end()));
  }
  return text.empty() ? "-" : text;
}

int64_t count_of(const std::vector<at::Tensor>& tensors) {
  return c10::sum_integers(
      c10::fmap(tensors, [](const at::Tensor& t) { return t.numel(); }));
}

// Adds the entries that torch::nn::Module::save() writes. Children that are not
// LibTorch's are left out, because they may save themselves in another way.
void add_entries(
    ArchiveChecksums& checksums,
    const std::string& prefix,
    const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    checksums.add(prefix + parameter.key(), parameter.value());
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    checksums.add(prefix + buffer.key(), buffer.value());
  }
  for (const auto& child : module.named_children()) {
    const torch::nn::Module& part = *child.value();
    if (c10::demangle(typeid(part).name()).starts_with("torch::nn::") &&
        part.is_serializable()) {
      add_entries(checksums, prefix + child.key() + "/", part);
    }
  }
}

}  // namespace

Nest<PartialShape> shapes_of(
    const Nest<at::Tensor>& inputs,
    const std::string& where) {
  std::vector<PartialShape> shapes;
  for (const auto& [path, input] : inputs) {
    TESSERA_CHECK_VALUE(
        input.defined() && input.dim() >= 1,
        "{}expected a tensor with a batch dimension{}, but got {}. Pass a tensor of shape [batch, ...].",
        where,
        path.empty() ? "" : " at '" + shorten(path) + "'",
        input.defined() ? "a scalar" : "an undefined tensor");
    PartialShape shape(input.sizes().begin(), input.sizes().end());
    shape[0] = std::nullopt;
    shapes.push_back(std::move(shape));
  }
  TESSERA_CHECK_VALUE(
      !shapes.empty(),
      "{}expected one tensor or more, but got none. Pass the inputs of forward().",
      where);
  return inputs.pack(std::move(shapes));
}

std::string summary(const torch::nn::Module& model) {
  std::vector<std::vector<std::string>> lines{
      {"part", "class", "parameters", "shapes"}};
  std::string tables;
  int64_t total = 0;
  const auto visit = [&](const std::string& path,
                         const torch::nn::Module& part) {
    const std::string name = path.empty() ? "(model)" : path;
    if (const auto* holder = TableModule::of(part)) {
      lines.push_back({name, class_of(part), "-", "tables below"});
      tables += fmt::format("\n{}\n{}", name, holder->summary());
      return;
    }
    const std::vector<at::Tensor> own = part.parameters(/*recurse=*/false);
    if (std::ranges::any_of(own, detail::is_unsized)) {
      lines.push_back({name, class_of(part), "not built", "-"});
      return;
    }
    total += count_of(own);
    if (own.empty() && !part.children().empty()) {
      return;  // its parts have lines of their own
    }
    const auto* layer = dynamic_cast<const Layer*>(&part);
    const bool is_built =
        layer == nullptr || !own.empty() || layer->input_shapes().has_value();
    lines.push_back(
        {name,
         class_of(part),
         is_built ? std::to_string(count_of(own)) : "not built",
         shapes_text(own)});
  };
  visit("", model);
  for (const auto& part : model.named_modules("", /*include_self=*/false)) {
    visit(part.key(), *part.value());
  }
  return fmt::format("{}{} dense parameters\n{}", align(lines), total, tables);
}

namespace detail {

void check_same_shapes(
    const std::string& class_name,
    const Nest<PartialShape>& built,
    const Nest<PartialShape>& inputs) {
  const auto others = leaves_like(built, inputs, class_name + " inputs");
  size_t next = 0;
  for (const auto& [path, known] : built) {
    const PartialShape& other = *others[next++];
    TESSERA_CHECK_VALUE(
        merge(known, other),
        "[{}{}] was built for inputs {}, but got {}. Make another layer for inputs of this shape.",
        class_name,
        path.empty() ? "" : " '" + shorten(path) + "'",
        to_string(known),
        to_string(other));
  }
}

void check_device(const torch::Device& device, const std::string& where) {
  const std::string problem = device_problem(device);
  TESSERA_CHECK_VALUE(
      problem.empty(),
      "{} the layer must go to a device that LibTorch can use, but got {}: {}. Choose another device, or leave the layer on the cpu.",
      where,
      device,
      problem);
}

void print_layer(const Layer& layer, std::ostream& stream) {
  stream << "tessera::" << layer.class_name() << "("
         << layer.get_config().dump() << ")";
}

void adopt_values(at::Tensor to, const at::Tensor& from) {
  const c10::InferenceMode normal(
      false);  // else the tensor could not be trained
  const at::NoGradGuard no_grad;
  to.set_data(from.detach().to(
      to.options(), /*non_blocking=*/false, /*copy=*/from.is_inference()));
}

void adopt_parameters(torch::nn::Module& to, const torch::nn::Module& from) {
  const auto adopt = [](const auto& own, const auto& others) {
    for (const auto& item : own) {
      adopt_values(item.value(), others[item.key()]);
    }
  };
  adopt(to.named_parameters(/*recurse=*/false), from.named_parameters(false));
  adopt(to.named_buffers(/*recurse=*/false), from.named_buffers(false));
  if (auto* linear = to.as<torch::nn::Linear>()) {
    linear->options = from.as<torch::nn::Linear>()->options;
  } else if (auto* norm = to.as<torch::nn::LayerNorm>()) {
    norm->options = from.as<torch::nn::LayerNorm>()->options;
  }
  const auto parts = from.named_children();
  for (const auto& part : to.named_children()) {
    adopt_parameters(*part.value(), *parts[part.key()]);
  }
}

at::Tensor unsized_parameter() {
  const c10::InferenceMode normal(false);
  return at::empty({0}, at::kFloat);
}

bool is_unsized(const at::Tensor& parameter) {
  return parameter.defined() && parameter.dim() == 1 && parameter.numel() == 0;
}

void save_layer(
    const torch::nn::Module& module,
    const std::optional<Nest<PartialShape>>& input_shapes,
    torch::serialize::OutputArchive& archive) {
  module.torch::nn::Module::save(archive);
  ArchiveChecksums checksums;
  add_entries(checksums, "", module);
  if (input_shapes) {
    const c10::IValue text =
        JsonValue<Nest<PartialShape>>::write(*input_shapes).dump();
    archive.write(kInputShape, text);
    checksums.add(kInputShape, text);
  }
  checksums.write(archive);
}

void save_unbuilt_layer(torch::serialize::OutputArchive& archive) {
  ArchiveChecksums().write(archive);
}

void build_as_saved(
    Layer& layer,
    const std::optional<Nest<PartialShape>>& built,
    torch::serialize::InputArchive& archive) {
  const std::string load = layer.class_name() + "::load";
  check_checksums(archive, c10::str("[", load, "]"));
  c10::IValue text;
  if (!archive.try_read(kInputShape, text)) {
    return;
  }
  const std::string where =
      fmt::format("{}.{}", layer.class_name(), kInputShape);
  TESSERA_CHECK_VALUE(
      text.isString(),
      "[{}] expected shapes as JSON text, but the archive has another value. It is damaged. Load another copy.",
      where);
  const auto saved = JsonValue<Nest<PartialShape>>::read(
      parse_json(text.toStringRef(), c10::str("[", where, "]")), where);
  if (!built) {
    layer.build(saved);
    return;
  }
  std::vector<PartialShape> shapes = saved.flatten();
  for (PartialShape& shape : shapes) {
    if (!shape.empty()) {
      shape[0] = std::nullopt;  // batch sizes may differ
    }
  }
  check_same_shapes(load, *built, saved.pack(shapes));
}

}  // namespace detail

}  // namespace tessera
