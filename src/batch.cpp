// SPDX-License-Identifier: Apache-2.0
#include "src/batch.h"

#include <tessera/optim/shorten.h>

#include "src/parallel.h"

#include <c10/util/Exception.h>

namespace tessera {

namespace {

int64_t nnz_of(const Feature& feature) {
  const at::Tensor* values = std::get_if<at::Tensor>(&feature);
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    values = &sparse->values;
  } else if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    values = &ragged->values;
  }
  return values->defined() ? values->numel() : 0;
}

// The values of a sparse COO tensor are no part of its autograd graph: their
// gradient would be lost without a word.
void check_weights_layout(const FeatureState& state, const Feature& weights) {
  const auto* tensor = std::get_if<at::Tensor>(&weights);
  TORCH_CHECK_VALUE(
      tensor == nullptr || !tensor->defined() ||
          tensor->layout() != at::kSparse || !tensor->requires_grad(),
      "[feature '",
      shorten(state.path),
      "'] weights of sparse COO layout can't receive a gradient. Pass their "
      "flat values, or a SparseFeature.");
}

}  // namespace

Batch read_batch(
    const Nest<FeatureConfig>& structure,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights) {
  const size_t count = states.size();
  std::vector<Feature> inputs;
  inputs.reserve(count);
  // Reading an id takes about as long as moving 32 bytes.
  int64_t bytes = 0;
  for (const Feature* feature : leaves_like(structure, features, "features")) {
    inputs.push_back(with_sparse_as_feature(*feature));
    bytes += 32 * nnz_of(inputs.back());
  }
  Batch batch;
  batch.weights.resize(count);
  if (!weights.empty()) {
    const auto leaves = leaves_like(structure, weights, "weights");
    for (size_t i = 0; i < count; ++i) {
      if (leaves[i]->has_value()) {
        check_weights_layout(states[i], **leaves[i]);
        batch.weights[i] = flat_weights(
            states[i], inputs[i], with_sparse_as_feature(**leaves[i]));
      }
    }
  }
  batch.bags.resize(count);
  run_tasks(static_cast<int64_t>(count), bytes, [&](int64_t i) {
    batch.bags[i] = make_id_bags(states[i], inputs[i], batch.weights[i]);
  });
  return batch;
}

}  // namespace tessera
