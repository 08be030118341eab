// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/torchscript/torchscript_module.h"

#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>

#include <map>
#include <memory>
#include <optional>
#include <variant>

#include "packages/export/src/torchscript/torchscript_source.h"
#include "packages/export/src/trace/example_batch.h"

namespace tessera::exporting {

namespace jit = torch::jit;

namespace {

using Parts = c10::List<at::Tensor>;
using FeatureDict = c10::Dict<std::string, Parts>;
using TensorDict = c10::Dict<std::string, at::Tensor>;

// Resolves the names of Python that LibTorch's own resolver does not know. Neither resolver
// knows `annotate`. Scripts have local variables with declared types instead.
struct PythonNames : jit::NativeResolver {
  std::shared_ptr<jit::SugaredValue> resolveValue(
      const std::string& name,
      jit::GraphFunction& method,
      const jit::SourceRange& location) override {
    static const std::map<std::string, at::ScalarType> kDtypes{
        {"int32", at::kInt},
        {"int64", at::kLong},
        {"float32", at::kFloat},
        {"float64", at::kDouble}};
    if (const auto dtype = kDtypes.find(name); dtype != kDtypes.end()) {
      return std::make_shared<jit::SimpleValue>(method.graph()->insertConstant(
          static_cast<int64_t>(dtype->second), location));
    }
    if (name == "ValueError" || name == "TypeError" || name == "IndexError") {
      return std::make_shared<jit::ExceptionValue>(name);
    }
    return jit::NativeResolver::resolveValue(name, method, location);
  }
};

}  // namespace

jit::Module make_module(const std::string& type_name) {
  jit::Module module{c10::QualifiedName(type_name)};
  // torch.jit.freeze and eval() need this attribute.
  module.register_attribute("training", c10::BoolType::get(), false);
  return module;
}

// A method that does not compile stays in the class, and save() then fails with
// std::out_of_range.
void define(jit::Module& module, const std::string& source) {
  module.define(source, std::make_shared<PythonNames>());
}

jit::Module script_layer(const ExportedLayer& layer) {
  jit::Module module = make_module("TPUEmbedding");
  for (size_t i = 0; i < layer.tables.size(); ++i) {
    const StoredTable& stored = layer.tables[i];
    if (!stored.rows.defined()) {
      continue;
    }
    const std::string name = stored_name(i);
    module.register_buffer(name, stored.rows);
    if (stored.scales.defined()) {
      module.register_buffer(name + "_scales", stored.scales);
      module.register_buffer(name + "_offsets", stored.offsets);
    }
    if (stored.keys.defined()) {
      module.register_buffer(name + "_keys", stored.keys);
    }
    if (stored.padding_key.defined()) {
      module.register_buffer(name + "_padding_key", stored.padding_key);
    }
  }
  define(module, embedding_source(layer));
  return module;
}

void detach_tensors(const jit::Module& root) {
  for (jit::Module module : root.modules()) {
    for (const auto& attribute : module.named_attributes(/*recurse=*/false)) {
      if (attribute.value.isTensor()) {
        module.setattr(attribute.name, attribute.value.toTensor().detach());
      }
    }
  }
}

jit::Module save_and_load(const jit::Module& module, AtomicFile& file) {
  file.write_by([&](auto write) { jit::ExportModule(module, write); });
  return jit::load(file.written_path());
}

at::Tensor run_embedding(
    jit::Module& loaded,
    const std::string& path,
    const Feature& feature,
    const at::Tensor& weights) {
  FeatureDict features;
  features.insert(path, Parts(parts_of(feature)));
  TensorDict weights_by_path;
  if (weights.defined()) {
    weights_by_path.insert(path, weights);
  }
  return loaded.forward({features, weights_by_path})
      .toGenericDict()
      .at(path)
      .toTensor();
}

std::vector<at::Tensor> run_model(
    jit::Module& loaded,
    const detail::ExportedModel& model,
    const ExportExample& batch) {
  FeatureDict features;
  batch.features.for_each([&](const std::string& path, const Feature& feature) {
    features.insert(path, Parts(parts_of(feature)));
  });
  // GCC 12 warns about array bounds if insert() fills the stack.
  jit::Stack inputs;
  inputs.reserve(2 + batch.inputs.size());
  inputs.emplace_back(features);
  if (model.takes_weights) {
    TensorDict weights;
    batch.weights.for_each(
        [&](const std::string& path, const std::optional<Feature>& weight) {
          if (weight) {
            weights.insert(path, std::get<at::Tensor>(*weight));
          }
        });
    inputs.emplace_back(weights);
  }
  for (const at::Tensor& input : batch.inputs) {
    inputs.emplace_back(input);
  }
  const jit::IValue result = loaded.forward(inputs);
  return model.returns_list ? result.toTensorVector()
                            : std::vector<at::Tensor>{result.toTensor()};
}

}  // namespace tessera::exporting
