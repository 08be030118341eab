// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/trace/traced_model.h"

#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/resource_guard.h>

#include <optional>
#include <set>
#include <utility>

#include "packages/export/src/trace/example_batch.h"
#include "packages/export/src/trace/visit_weights.h"
#include "src/common/check.h"
#include "src/engine/forward_interception.h"
#include "src/features/batch.h"

namespace tessera::exporting {

namespace jit = torch::jit;

namespace {

// Refuses a subset of the layer's features. forward() accepts a subset under NoGradGuard,
// but a script needs all features.
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
  const RecordLookup none;
  const ForwardInterception interception = intercept(none);
  return forward(batch);
}

ForwardInterception TracedModel::intercept(const RecordLookup& record_lookup) {
  return ForwardInterception([this, &record_lookup](
                                 const auto& state,
                                 const auto& structure,
                                 const auto& features,
                                 const auto& weights) {
    check_has_all(structure, features);
    const PrecisionScope of_lookups(Precision::kFloat32);
    const ExportedLayer& layer = layer_of(state, structure);
    return record_lookup == nullptr
        ? lookup_all(layer, features, weights)
        : record_lookups(layer, features, weights, record_lookup);
  });
}

TracedModel::Layers& TracedModel::find_layers(const ExportExample& example) {
  outputs(example);
  check_calls_layers(!layers_.empty(), model_.module, where_);
  std::set<const EmbeddingState*> submodules;
  for (const auto& [tables, prefix] : tables_and_prefixes(model_.module)) {
    submodules.insert(&tables->state());
  }
  for (const auto& [state, layer] : layers_) {
    check_is_submodule(submodules.contains(state), where_);
  }
  return layers_;
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
    const RecordLookup& record_lookup) {
  const ForwardInterception interception = intercept(record_lookup);
  const auto graph = record_graph(
      flatten(example),
      [&](const auto& tensors) { return forward(unflatten(example, tensors)); },
      {.returns_list = model_.returns_list, .root = &root, .where = where_});
  jit::EliminateDeadCode(graph);
  check_filled(*graph, where_);
  // The tracer names values after parameters. A value `torch` would hide the operators.
  for (jit::Node* node : graph->nodes()) {
    for (jit::Value* output : node->outputs()) {
      output->setDebugName("");
    }
  }
  return graph;
}

std::vector<at::Tensor> TracedModel::forward(const ExportExample& batch) const {
  const PrecisionScope scope(options_.precision);
  return model_.forward(batch);
}

std::shared_ptr<jit::Graph> TracedModel::record(
    const std::vector<at::Tensor>& weights,
    const ExportExample& example,
    const RecordLookup& record_lookup,
    const Checks& checks) {
  const ForwardInterception interception = intercept(record_lookup);
  return record_operators(
      weights,
      flatten(example),
      [&](const auto& tensors) { return forward(unflatten(example, tensors)); },
      checks,
      where_);
}

// Called while LibTorch traces the model.
Nest<at::Tensor> TracedModel::record_lookups(
    const ExportedLayer& layer,
    const Features& features,
    const Weights& weights,
    const RecordLookup& record_lookup) const {
  std::vector<at::Tensor> activations;
  {
    const jit::ResourceGuard resume(jit::tracer::pauseTracing());
    activations = lookup_all(layer, features, weights).flatten();
  }
  const auto inputs = leaves_like(layer.structure, features, "features");
  std::vector<const std::optional<Feature>*> input_weights(inputs.size());
  if (!weights.empty()) {
    input_weights = some_leaves_like(layer.structure, weights, "weights");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const at::Tensor& part : parts_of(*inputs[i])) {
      check_is_known(layer.paths[i], part);
    }
    at::Tensor weight;
    if (input_weights[i] != nullptr && input_weights[i]->has_value()) {
      weight = values_of(**input_weights[i]);
      check_is_known(layer.paths[i], weight);
    }
    activations[i] =
        record_lookup(layer, i, *inputs[i], weight, activations[i]);
  }
  return layer.structure.pack(std::move(activations));
}

// The tracer turns a tensor that it does not know into a constant. Then the file would
// always look up the example's ids.
void TracedModel::check_is_known(
    const std::string& path,
    const at::Tensor& tensor) const {
  TESSERA_CHECK_VALUE(
      jit::tracer::getTracingState()->hasValue(tensor),
      "{} feature '{}': ids and weights must be the model's inputs, or be computed from them by LibTorch's operators, but this tensor is not. Compute it with LibTorch's operators, or compute it outside the model and pass it as an input.",
      where_,
      shorten(path));
}

void check_calls_layers(
    bool does,
    const torch::nn::Module& model,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      does,
      "{} expected a model whose forward() calls a TPUEmbedding or an EmbeddingEngineModule, but {} calls neither. Export such a model with LibTorch's own tools.",
      where,
      model.name());
}

void check_is_submodule(bool is_one, const std::string& where) {
  TESSERA_CHECK_VALUE(
      is_one,
      "{} every TPUEmbedding and EmbeddingEngine that forward() calls must be a submodule of the model, but one is not. Register it with register_module(). An EmbeddingEngine must be an EmbeddingEngineModule for that.",
      where);
}

}  // namespace tessera::exporting
