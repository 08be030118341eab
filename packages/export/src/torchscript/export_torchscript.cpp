// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/export_torchscript.h>

#include <tessera/engine/table_module.h>

#include "packages/export/src/torchscript/torchscript_source.h"
#include "packages/export/src/trace/example_batch.h"
#include "packages/export/src/trace/export_scope.h"
#include "packages/export/src/trace/exported_layer.h"
#include "packages/export/src/trace/traced_model.h"
#include "packages/export/src/trace/verification.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/schema_matching.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace tessera {

namespace jit = torch::jit;

namespace exporting {

namespace {

using Parts = c10::List<at::Tensor>;
using FeatureDict = c10::Dict<std::string, Parts>;
using TensorDict = c10::Dict<std::string, at::Tensor>;

// Resolves the names of Python that LibTorch's own resolver does not know. Neither resolver
// knows `annotate`, so scripts declare the types of local variables instead.
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

// An empty TorchScript module.
jit::Module make_module(const std::string& type_name) {
  jit::Module module{c10::QualifiedName(type_name)};
  // torch.jit.freeze and eval() need this attribute.
  module.register_attribute("training", c10::BoolType::get(), false);
  return module;
}

// Adds the methods in `source`, which is TorchScript, to a module. A method that does not
// compile stays in the class, and save() then fails with std::out_of_range.
void define(jit::Module& module, const std::string& source) {
  module.define(source, std::make_shared<PythonNames>());
}

// A module with the layer's tables as buffers and its lookups as methods.
jit::Module script_layer(const ExportedLayer& layer) {
  jit::Module module = make_module("TPUEmbedding");
  for (size_t i = 0; i < layer.tables.size(); ++i) {
    visit_tensors(
        layer.tables[i],
        stored_name(i),
        [&](const std::string& name, const at::Tensor& tensor) {
          module.register_buffer(name, tensor);
        });
  }
  define(module, embedding_source(layer));
  return module;
}

// Detaches all tensors of a module, so that the file does not hold gradients.
void detach_tensors(const jit::Module& root) {
  for (jit::Module module : root.modules()) {
    for (const auto& attribute : module.named_attributes(/*recurse=*/false)) {
      if (attribute.value.isTensor()) {
        module.setattr(attribute.name, attribute.value.toTensor().detach());
      }
    }
  }
}

// Writes the module to `file` and loads it back, without committing the file.
jit::Module save_and_load(const jit::Module& module, AtomicFile& file) {
  file.write_by([&](auto write) { jit::ExportModule(module, write); });
  return jit::load(file.written_path());
}

// The activations of one feature, computed by the loaded file of a layer.
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

// The outputs of the loaded file of a model.
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

// The name of a module's class: "Linear" for "torch::nn::LinearImpl", "Sum" for
// "SumImpl<at::Tensor>".
std::string type_name(const torch::nn::Module& module) {
  std::string name = module.name();
  name = name.substr(0, name.find('<'));
  name = name.substr(name.find_last_of(':') + 1);
  if (name.ends_with("Impl")) {
    name.resize(name.size() - 4);
  }
  return attribute_name(name, {"TPUEmbedding"});
}

// Builds a tree of modules with the names of the model's modules.
class ModuleTree {
 public:
  explicit ModuleTree(const TracedModel::Layers& layers) {
    for (const auto& [state, layer] : layers) {
      scripts_.emplace(state, script_layer(layer));
    }
  }

  const jit::Module& script_of(const ExportedLayer& layer) const {
    return scripts_.at(layer.state);
  }

  // Copies the model's tree of modules, with its parameters and buffers. An embedding
  // becomes its script.
  jit::Module copy_module(const torch::nn::Module& module) {
    if (const auto tables = TableModule::of(module)) {
      const EmbeddingState* state = &tables->state();
      return copies_.emplace(state, scripts_.at(state)).first->second;
    }
    if (const auto found = copies_.find(&module); found != copies_.end()) {
      return found->second;
    }
    jit::Module copy = make_module(type_name(module));
    copies_.emplace(&module, copy);
    std::set<std::string> taken;
    const auto name_of = [&](const std::string& name) {
      return *taken.insert(attribute_name(name, taken)).first;
    };
    // Not detached, because the tracer identifies tensors by object identity.
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
      copy.register_parameter(
          name_of(entry.key()), entry.value(), /*is_buffer=*/false);
    }
    for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
      copy.register_buffer(name_of(entry.key()), entry.value());
    }
    for (const auto& entry : module.named_children()) {
      const auto tables = TableModule::of(*entry.value());
      if (!tables || scripts_.count(&tables->state()) > 0) {
        copy.register_module(name_of(entry.key()), copy_module(*entry.value()));
      }
    }
    return copy;
  }

 private:
  // The script of each layer, by the layer's state.
  std::map<const EmbeddingState*, jit::Module> scripts_;
  // The copies of modules, by the address of the module, or of its state if it has tables.
  std::map<const void*, jit::Module> copies_;
};

// Adds a call of the method feature_<index>() of the layer's script to the graph that the
// tracer records.
jit::Value* add_call(
    const jit::Module& script,
    size_t index,
    const Feature& feature,
    const at::Tensor& weights) {
  jit::Graph& graph = *jit::tracer::getTracingState()->graph;
  std::vector<jit::Value*> parts;
  for (const at::Tensor& part : parts_of(feature)) {
    parts.push_back(jit::tracer::getValueTrace(part));
  }
  jit::Value* weight = weights.defined() ? jit::tracer::getValueTrace(weights)
                                         : graph.insertConstant(jit::IValue());
  jit::Value* list =
      graph.insertNode(graph.createList(c10::TensorType::get(), parts))
          ->output();
  const std::string method = "feature_" + std::to_string(index);
  const std::vector<jit::NamedValue> arguments{
      jit::tracer::getValueTrace(script._ivalue()), list, weight};
  return graph.insertMethodCall(
      method,
      jit::matchSchema(
          script.get_method(method).function().getSchema(),
          jit::SourceRange(),
          graph,
          arguments,
          {}));
}

// Writes the model in TorchScript: its tree of modules, compute(), which the tracer
// recorded, and forward(), which takes features by their paths.
// Errors:  those of TracedModel::find_layers().
jit::Module script_model(
    TracedModel& traced,
    const detail::ExportedModel& model,
    const ExportExample& example) {
  ModuleTree tree(traced.find_layers(example));
  jit::Module root = tree.copy_module(model.module);
  const auto record_lookup = [&](const ExportedLayer& layer,
                                 size_t index,
                                 const Feature& feature,
                                 const at::Tensor& weights,
                                 const at::Tensor& activations) {
    jit::tracer::setValueTrace(
        activations, add_call(tree.script_of(layer), index, feature, weights));
    return activations;
  };
  root.type()->addMethod(root._ivalue()->compilation_unit()->create_function(
      c10::QualifiedName(*root.type()->name(), "compute"),
      traced.trace(root, example, record_lookup)));
  define(root, forward_source(model, example));
  detach_tensors(root);
  return root;
}

}  // namespace

}  // namespace exporting

namespace {

constexpr const char* kWhere = "[export_torchscript]";

// Compares the file with the layer. TorchScript's optimizations are off: they take 40 ms
// per feature and do not make these few calls faster.
void check_loaded(const exporting::ExportedLayer& layer, jit::Module loaded) {
  const jit::GraphOptimizerEnabledGuard no_optimizations(false);
  exporting::check_embedding(
      layer,
      [&](const std::string& path,
          const Feature& feature,
          const at::Tensor& weights) {
        return exporting::run_embedding(loaded, path, feature, weights);
      });
}

}  // namespace

void detail::export_torchscript(
    const TableModule* tables,
    const std::string& path,
    const ExportOptions& options) {
  exporting::write_layer(
      tables,
      path,
      options,
      exporting::Conversion::kNow,
      kWhere,
      [&](exporting::ExportedLayer& layer, AtomicFile& file) {
        const jit::Module script = exporting::script_layer(layer);
        exporting::detach_tensors(script);
        check_loaded(layer, exporting::save_and_load(script, file));
        file.commit();
      });
}

void detail::export_torchscript(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options) {
  exporting::ExportScope scope(path, kWhere, &model.module);
  const ExportExample parts =
      exporting::model_parts(model, example, options, kWhere);
  exporting::TracedModel traced(
      model, options, exporting::Conversion::kNow, kWhere);
  jit::Module loaded = exporting::save_and_load(
      exporting::script_model(traced, model, parts), scope.file);
  exporting::check_model(
      model.module,
      parts,
      [&](const ExportExample& batch) { return traced.outputs(batch); },
      [&](const ExportExample& batch) {
        return exporting::run_model(loaded, model, batch);
      },
      options.precision,
      kWhere);
  scope.file.commit();
}

}  // namespace tessera
