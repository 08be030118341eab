// SPDX-License-Identifier: Apache-2.0
#include "layers/export/traced_model.h"

#include <tessera/common/shorten.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/resource_guard.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "layers/export/example_batch.h"
#include "src/common/check.h"
#include "src/common/error_reason.h"
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

std::vector<at::Tensor> to_tensors(const jit::Stack& values) {
  std::vector<at::Tensor> tensors;
  for (const jit::IValue& value : values) {
    tensors.push_back(value.toTensor());
  }
  return tensors;
}

}  // namespace

TracedModel::TracedModel(
    const detail::ExportedModel& model,
    const ExportOptions& options,
    std::string where)
    : model_(model), options_(options), where_(std::move(where)) {}

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
            .emplace(&state, export_layer(state, structure, options_, where_))
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
  jit::Stack inputs;
  for (const at::Tensor& tensor : flatten(example)) {
    inputs.emplace_back(tensor);
  }
  const auto run = [&](const jit::Stack& tensors) -> jit::Stack {
    const std::vector<at::Tensor> outputs =
        model_.forward(unflatten(example, to_tensors(tensors)));
    if (model_.returns_list) {
      return {c10::List<at::Tensor>(outputs)};
    }
    return {outputs[0]};
  };
  std::shared_ptr<jit::Graph> graph;
  try {
    graph = jit::tracer::trace(
                inputs,
                run,
                [](const torch::autograd::Variable&) { return ""; },
                /*strict=*/false,  // without its warning about lists
                /*force_outplace=*/false,
                &root)
                .first->graph;
  } catch (const c10::ValueError&) {
    throw;
  } catch (const std::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} LibTorch can't trace the model: {}. Register the tensors that it holds as parameters or buffers.",
        where_,
        reason_of(error));
  }
  jit::EliminateDeadCode(graph);
  check_filled(*graph);
  // The tracer names values after parameters. One named `torch` would hide the operators.
  for (jit::Node* node : graph->nodes()) {
    for (jit::Value* output : node->outputs()) {
      output->setDebugName("");
    }
  }
  return graph;
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

// The tracer records at::tensor(values) as an empty tensor, because it does not see
// values that C++ writes into memory.
void TracedModel::check_filled(const jit::Graph& graph) const {
  for (const jit::Node* node : graph.nodes()) {
    const std::string kind = node->kind().toUnqualString();
    if (kind.find("empty") == std::string::npos) {
      continue;
    }
    const auto& uses = node->output()->uses();
    TESSERA_CHECK_VALUE(
        std::any_of(
            uses.begin(),
            uses.end(),
            [](const jit::Use& use) {
              const std::string user = use.user->kind().toUnqualString();
              return user.ends_with("_");
            }),
        "{} operators must compute all tensors, but forward() fills one with C++ values, by at::tensor() or through its memory. Make it with torch::tensor(), register it as a buffer, or pass it as an input.",
        where_);
  }
}

}  // namespace tessera::exporting
