// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/traced_model.h"

#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/resource_guard.h>

#include <optional>
#include <utility>

#include "packages/export/src/example_batch.h"
#include "packages/export/src/record_graph.h"
#include "src/common/check.h"
#include "src/engine/forward_interception.h"
#include "src/features/batch.h"

namespace tessera::exporting {

namespace jit = torch::jit;
using torch::jit::tracer::getTracingState;
using torch::jit::tracer::getValueTrace;

namespace {

// Refuses a subset of the layer's features. forward() accepts one under NoGradGuard, but
// a script needs all features.
void check_has_all(
    const Nest<FeatureConfig>& structure,
    const Features& features) {
  const at::AutoGradMode enable_grad(true);
  try {
    (void)part_of(structure, features);
  } catch (const c10::ValueError& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} An exported model must look up all features of a layer.",
        error.what_without_backtrace());
  }
}

}  // namespace

TracedModel::TracedModel(
    const detail::ExportedModel& model,
    const ExportOptions& options,
    Conversion conversion,
    std::string where)
    : model_(model),
      options_(options),
      conversion_(conversion),
      where_(std::move(where)) {
  // An export reads the tables directly, so lookups in the background must end first.
  model_.module.apply([](const torch::nn::Module& part) {
    if (const TableModule* tables = TableModule::of(part)) {
      tables->wait_for_lookups();
    }
  });
}

std::vector<at::Tensor> TracedModel::outputs(const ExportExample& batch) {
  const ForwardInterception interception([this](
                                             const auto& state,
                                             const auto& structure,
                                             const auto& features,
                                             const auto& weights) {
    check_has_all(structure, features);
    return lookup_all(layer_of(state, structure), features, weights);
  });
  return model_.forward(batch);
}

ExportedLayer& TracedModel::layer_of(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& structure) {
  const auto found = layers_.find(&state);
  return found != layers_.end()
      ? found->second
      : layers_
            .emplace(
                &state,
                export_layer(state, structure, options_, conversion_, where_))
            .first->second;
}

std::shared_ptr<jit::Graph> TracedModel::trace(
    jit::Module& root,
    const ExportExample& example,
    const AddLookup& add_lookup) {
  const ForwardInterception interception([&](const auto& state,
                                             const auto& structure,
                                             const auto& features,
                                             const auto& weights) {
    check_has_all(structure, features);
    return record_lookups(
        layer_of(state, structure), features, weights, add_lookup);
  });
  const auto graph = record_graph(
      flatten(example),
      [&](const auto& tensors) { return forward(example, tensors); },
      {.returns_list = model_.returns_list, .root = &root, .where = where_});
  jit::EliminateDeadCode(graph);
  check_filled(*graph, where_);
  // The tracer names values after parameters. One named `torch` would hide the operators.
  for (jit::Node* node : graph->nodes()) {
    for (jit::Value* output : node->outputs()) {
      output->setDebugName("");
    }
  }
  return graph;
}

std::vector<at::Tensor> TracedModel::forward(
    const ExportExample& example,
    const std::vector<at::Tensor>& tensors) const {
  return model_.forward(unflatten(example, tensors));
}

std::shared_ptr<jit::Graph> TracedModel::record(
    const std::vector<at::Tensor>& weights,
    const ExportExample& example,
    const RecordLookup& record_lookup,
    const Checks& checks) {
  const ForwardInterception interception([&](const auto& state,
                                             const auto& structure,
                                             const auto& features,
                                             const auto& feature_weights) {
    check_has_all(structure, features);
    const ExportedLayer& layer = layer_of(state, structure);
    {
      const jit::ResourceGuard resume(jit::tracer::pauseTracing());
      lookup_all(layer, features, feature_weights);  // refuses bad batches
    }
    const auto inputs = leaves_like(layer.structure, features, "features");
    std::vector<const std::optional<Feature>*> given(inputs.size());
    if (!feature_weights.empty()) {
      given = some_leaves_like(layer.structure, feature_weights, "weights");
    }
    std::vector<at::Tensor> activations;
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const at::Tensor& part : parts_of(*inputs[i])) {
        value_of(layer.paths[i], part);
      }
      at::Tensor weight;
      if (given[i] != nullptr && given[i]->has_value()) {
        weight = values_of(**given[i]);
        value_of(layer.paths[i], weight);
      }
      activations.push_back(record_lookup(layer, i, *inputs[i], weight));
    }
    return layer.structure.pack(std::move(activations));
  });
  return record_operators(
      weights,
      flatten(example),
      [&](const auto& tensors) { return forward(example, tensors); },
      checks,
      where_);
}

// Called while LibTorch traces the model.
Nest<at::Tensor> TracedModel::record_lookups(
    const ExportedLayer& layer,
    const Features& features,
    const Weights& weights,
    const AddLookup& add_lookup) const {
  Nest<at::Tensor> activations;
  {
    const jit::ResourceGuard resume(jit::tracer::pauseTracing());
    activations = lookup_all(layer, features, weights);
  }
  const auto inputs = leaves_like(layer.structure, features, "features");
  std::vector<const std::optional<Feature>*> input_weights(inputs.size());
  if (!weights.empty()) {
    input_weights = some_leaves_like(layer.structure, weights, "weights");
  }
  const std::vector<at::Tensor> outputs = activations.flatten();
  for (size_t i = 0; i < inputs.size(); ++i) {
    jit::Graph& graph = *getTracingState()->graph;
    std::vector<jit::Value*> parts;
    for (const at::Tensor& part : parts_of(*inputs[i])) {
      parts.push_back(value_of(layer.paths[i], part));
    }
    jit::Value* weight = nullptr;
    if (input_weights[i] != nullptr && input_weights[i]->has_value()) {
      weight = value_of(layer.paths[i], values_of(**input_weights[i]));
    } else {
      weight = graph.insertConstant(jit::IValue());
    }
    jit::tracer::setValueTrace(
        outputs[i], add_lookup(graph, layer, i, parts, weight));
  }
  return activations;
}

// The tracer turns a tensor that it does not know into a constant. Then the file would
// always look up the example's ids.
jit::Value* TracedModel::value_of(
    const std::string& path,
    const at::Tensor& tensor) const {
  TESSERA_CHECK_VALUE(
      getTracingState()->hasValue(tensor),
      "{} feature '{}': ids and weights must be the model's inputs, or be computed from them by LibTorch's operators, but this tensor is not. Compute it with LibTorch's operators, or compute it outside the model and pass it as an input.",
      where_,
      shorten(path));
  return getValueTrace(tensor);
}

}  // namespace tessera::exporting
