// SPDX-License-Identifier: Apache-2.0
#include <tessera/engine/table_module.h>

#include "packages/export/src/model_script.h"

#include <torch/csrc/jit/frontend/schema_matching.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "packages/export/src/named_weights.h"
#include "packages/export/src/torchscript_module.h"
#include "packages/export/src/torchscript_source.h"
#include "packages/export/src/value_read_observer.h"
#include "src/common/check.h"
#include "src/engine/embedding_state.h"

namespace tessera::exporting {

namespace jit = torch::jit;

namespace {

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

  bool has(const ExportedLayer& layer) const {
    return copies_.count(layer.state) > 0;
  }

 private:
  // The script of each layer, by the layer's state.
  std::map<const EmbeddingState*, jit::Module> scripts_;
  // The copies of modules, by the address of the module. For a module with tables, it is
  // the address of its state.
  std::map<const void*, jit::Module> copies_;
};

// Adds a call of the method feature_<index>() of the layer's script to the graph.
jit::Value* add_call(
    jit::Graph& graph,
    const jit::Module& script,
    size_t index,
    const std::vector<jit::Value*>& parts,
    jit::Value* weight) {
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

// Adds a method that the tracer has recorded.
void add_method(
    const jit::Module& root,
    const char* name,
    std::shared_ptr<jit::Graph> graph) {
  root.type()->addMethod(root._ivalue()->compilation_unit()->create_function(
      c10::QualifiedName(*root.type()->name(), name), std::move(graph)));
}

// Finds the attributes of the weights. Call it before detach_tensors(), which makes other
// tensors of shared ones.
std::vector<ScriptWeight> script_weights(
    const jit::Module& root,
    const torch::nn::Module& model,
    const std::string& where) {
  std::map<const void*, std::vector<std::string>> attributes;
  for (const auto& attribute : root.named_attributes()) {
    if (attribute.value.isTensor()) {
      attributes[attribute.value.toTensor().unsafeGetTensorImpl()].push_back(
          attribute.name);
    }
  }
  std::vector<ScriptWeight> weights;
  for (const pt2::Weight& weight : named_weights(model, {}, where)) {
    weights.push_back(
        {.name = weight.name,
         .attributes = attributes.at(weight.tensor.unsafeGetTensorImpl())});
  }
  return weights;
}

}  // namespace

jit::Module script_model(
    TracedModel& traced,
    const detail::ExportedModel& model,
    const ExportExample& example) {
  traced.outputs(example);  // finds the layers
  TESSERA_CHECK_VALUE(
      !traced.layers().empty(),
      "[export_torchscript] expected a model whose forward() calls a TPUEmbedding or an EmbeddingEngineModule, but {} calls neither. Export such a model with LibTorch's own tools.",
      model.module.name());
  ModuleTree tree(traced.layers());
  jit::Module root = tree.copy_module(model.module);
  for (const auto& [state, layer] : traced.layers()) {
    TESSERA_CHECK_VALUE(
        tree.has(layer),
        "[export_torchscript] every TPUEmbedding and EmbeddingEngine that forward() calls must be a submodule of the model, but one is not. Register it with register_module(). An EmbeddingEngine must be an EmbeddingEngineModule for that.");
  }
  const auto add_lookup = [&](jit::Graph& graph,
                              const ExportedLayer& layer,
                              size_t index,
                              const std::vector<jit::Value*>& parts,
                              jit::Value* weight) {
    return add_call(graph, tree.script_of(layer), index, parts, weight);
  };
  add_method(root, "compute", traced.trace(root, example, add_lookup));
  define(root, forward_source(model, example));
  detach_tensors(root);
  return root;
}

DenseScript script_dense_part(
    TracedModel& traced,
    const detail::ExportedModel& dense,
    const ExportExample& example,
    const std::vector<std::string>& names,
    const std::string& where) {
  jit::Module root = ModuleTree(/*layers=*/{}).copy_module(dense.module);
  const ValueReadObserver observer;
  const auto graph = traced.trace(root, example, /*add_lookup=*/{});
  check_no_reads(observer, where);
  for (size_t i = 0; i < names.size(); ++i) {
    graph->inputs()[i + 1]->setDebugName(names[i]);  // the first one is self
  }
  add_method(root, "forward", graph);
  DenseScript script{
      .module = root, .weights = script_weights(root, dense.module, where)};
  detach_tensors(root);
  return script;
}

}  // namespace tessera::exporting
