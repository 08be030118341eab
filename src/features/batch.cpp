// SPDX-License-Identifier: Apache-2.0
#include "src/features/batch.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/features/id_values.h"
#include "src/features/tensor_checks.h"

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <list>
#include <numeric>
#include <utility>

namespace tessera {

namespace {

// _values() of a sparse COO tensor is not part of the autograd graph, so a gradient of
// these weights would be lost silently.
void check_weights_layout(const FeatureState& state, const Feature& weights) {
  const auto* tensor = std::get_if<at::Tensor>(&weights);
  TESSERA_CHECK_VALUE(
      tensor == nullptr || !tensor->defined() ||
          tensor->layout() != at::kSparse || !tensor->requires_grad(),
      "[feature '{}'] weights of sparse COO layout can't receive a gradient. Pass their flat values, or a SparseFeature.",
      shorten(state.path));
}

template <class T>
size_t count_leaves(const Nest<T>& nest) {
  if (nest.is_leaf()) {
    return 1;
  }
  size_t count = 0;
  if (nest.is_list()) {
    for (const Nest<T>& child : nest.items()) {
      count += count_leaves(child);
    }
  } else {
    for (const auto& [key, child] : nest.entries()) {
      count += count_leaves(child);
    }
  }
  return count;
}

// `features` and `weights` have one entry per state. A feature is nullptr if it was not
// requested, and the weights are nullptr if the feature has none.
Batch read_leaves(
    const std::vector<FeatureState>& states,
    const std::vector<const Feature*>& features,
    const std::vector<const std::optional<Feature>*>& weights) {
  const size_t count = states.size();
  Batch batch;
  batch.weights.resize(count);
  batch.bags.resize(count);
  std::vector<const Feature*> inputs = features;
  std::list<Feature> converted;  // `inputs` points to them
  int64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (inputs[i] == nullptr) {
      continue;
    }
    if (has_sparse_layout(*inputs[i])) {
      inputs[i] = &converted.emplace_back(with_sparse_as_feature(*inputs[i]));
    }
    const at::Tensor& values = values_of(*inputs[i]);
    bytes += values.defined() ? kIdReadBytes * values.numel() : 0;
  }
  for (size_t i = 0; i < count; ++i) {
    if (weights[i] != nullptr && weights[i]->has_value()) {
      check_weights_layout(states[i], **weights[i]);
      batch.weights[i] = flat_weights(
          states[i], *inputs[i], with_sparse_as_feature(**weights[i]));
    }
  }
  // A single feature is read on this thread, and its ids in parallel.
  run_tasks(static_cast<int64_t>(count), bytes, [&](int64_t i) {
    batch.bags[i] = inputs[i] == nullptr
        ? make_empty_bags(states[i])
        : make_id_bags(states[i], *inputs[i], batch.weights[i]);
  });
  return batch;
}

}  // namespace

std::vector<int64_t> Batch::ragged_rows() const {
  return c10::fmap(
      bags, [](const IdBags& of_feature) { return of_feature.ragged_rows; });
}

Batch read_batch(
    const Nest<FeatureConfig>& structure,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights) {
  const auto inputs = leaves_like(structure, features, "features");
  return read_leaves(
      states,
      inputs,
      has_no_weights(weights, structure)
          ? std::vector<const std::optional<Feature>*>(states.size())
          : some_leaves_like(structure, weights, "weights"));
}

std::optional<Nest<size_t>> part_of(
    const Nest<FeatureConfig>& structure,
    const Features& features) {
  if (at::GradMode::is_enabled() &&
      count_leaves(features) < count_leaves(structure)) {
    try {
      leaves_like(structure, features, "features");
    } catch (c10::Error& error) {
      error.add_context(
          "With gradients on, a batch must have all of the features. Under "
          "torch::NoGradGuard, some of them are enough. forward_partial() takes "
          "some of them in training, too.");
      throw;
    }
  }
  return some_part_of(structure, features);
}

std::optional<Nest<size_t>> some_part_of(
    const Nest<FeatureConfig>& structure,
    const Features& features) {
  const size_t count = count_leaves(structure);
  if (count_leaves(features) >= count) {
    return std::nullopt;
  }
  std::vector<size_t> indices(count);
  std::iota(indices.begin(), indices.end(), size_t{0});
  return part_like(structure.pack(std::move(indices)), features, "features");
}

Batch read_part(
    const Nest<size_t>& part,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights) {
  const std::vector<size_t> indices = part.flatten();
  const auto spread = [&]<class Leaf>(const std::vector<const Leaf*>& leaves) {
    std::vector<const Leaf*> all(states.size());
    for (size_t i = 0; i < leaves.size(); ++i) {
      all[indices[i]] = leaves[i];
    }
    return all;
  };
  std::vector<const std::optional<Feature>*> given;
  if (!has_no_weights(weights, part)) {
    given = some_leaves_like(part, weights, "weights");
  }
  return read_leaves(
      states, spread(leaves_like(part, features, "features")), spread(given));
}

}  // namespace tessera
