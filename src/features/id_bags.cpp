// SPDX-License-Identifier: Apache-2.0
#include "src/features/id_bags.h"

#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/features/feature_state.h"
#include "src/features/id_rule.h"
#include "src/features/id_values.h"
#include "src/features/output_shapes.h"
#include "src/features/tensor_checks.h"

#include <utility>

namespace tessera {

bool has_sparse_layout(const Feature& feature) {
  const auto* tensor = std::get_if<at::Tensor>(&feature);
  return tensor != nullptr && tensor->defined() &&
      tensor->layout() == at::kSparse;
}

Feature with_sparse_as_feature(const Feature& feature) {
  return has_sparse_layout(feature)
      ? SparseFeature::from_coo(std::get<at::Tensor>(feature))
      : feature;
}

at::DimVector IdBags::activation_shape() const {
  at::DimVector shape(batch_shape.begin(), batch_shape.end());
  shape.push_back(dim);
  return shape;
}

IdBags bags_without_ids(
    const FeatureState& feature,
    std::vector<int64_t> batch_shape) {
  IdBags bags;
  bags.combiner = feature.config.table->combiner;
  bags.batch_shape = std::move(batch_shape);
  bags.dim = feature.config.table->dim;
  return bags;
}

namespace {

IdBags read_dense_bags(const FeatureState& feature, const at::Tensor& ids) {
  check_integers(feature, ids, "ids");
  TESSERA_CHECK_VALUE(
      ids.dim() >= 1,
      "{}a dense feature must have rank 1 or above, but got a scalar. Give it a batch dimension.",
      where_of(feature));
  TESSERA_CHECK_VALUE(
      feature.config.sequence_length() == 0,
      "{}a sequence feature must be sparse or ragged, but got a dense tensor. Set max_sequence_length to 0: a dense tensor [B, K] then gives activations [B, K, dim].",
      where_of(feature));
  PartialShape input(ids.sizes().vec());
  if (input.size() >= 2 && input.back() != 1) {
    input.emplace_back(1);  // each id is a bag
  }
  IdBags bags =
      bags_without_ids(feature, output_shape_of_batch(feature, input));
  bags.bags = ids.numel();
  read_dense_ids(feature, ids, bags);
  return bags;
}

}  // namespace

IdBags make_id_bags(
    const FeatureState& state,
    const Feature& feature,
    const at::Tensor& weights) {
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    return read_sparse_bags(state, *sparse, weights);
  }
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    return read_ragged_bags(state, *ragged, weights);
  }
  return read_dense_bags(state, std::get<at::Tensor>(feature));
}

IdBags make_empty_bags(const FeatureState& state) {
  IdBags bags = bags_without_ids(state, {0});
  bags.offsets.assign(1, 0);
  return bags;
}

void compute_scales(IdBags& bags) {
  if (!is_divided(bags.combiner) ||
      (bags.offsets.empty() && bags.weights.empty())) {
    return;  // all scales are 1
  }
  constexpr int64_t kBagsPerTask = 4096;
  const float* weights = bags.weights.empty() ? nullptr : bags.weights.data();
  bags.scales.resize(bags.bags);
  const int64_t bytes = (bags.bags + std::ssize(bags.weights)) * kIdReadBytes;
  run_ranges(bags.bags, kBagsPerTask, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t bag = begin; bag < end; ++bag) {
      bags.scales[bag] =
          scale_of_bag(bags.combiner, weights, bags.begin(bag), bags.end(bag));
    }
  });
}

void drop_zero_rows(IdBags& bags) {
  if (bags.zero_ids() == 0) {
    return;
  }
  Buffer<int64_t> offsets(bags.bags + 1);
  int64_t to = 0;
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    const int64_t begin = bags.begin(bag);
    const int64_t end = bags.end(bag);
    offsets[bag] = to;
    for (int64_t i = begin; i < end; ++i) {
      if (bags.ids[i] == kZeroRow) {
        continue;
      }
      bags.ids[to] = bags.ids[i];
      if (!bags.weights.empty()) {
        bags.weights[to] = bags.weights[i];
      }
      ++to;
    }
  }
  offsets[bags.bags] = to;
  bags.offsets = std::move(offsets);
  bags.ids.resize(to);
  bags.weights.resize(bags.weights.empty() ? 0 : to);
  bags.kept.clear();
  bags.zero_rows = 0;
  bags.padding = 0;
}

}  // namespace tessera
