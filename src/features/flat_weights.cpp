// SPDX-License-Identifier: Apache-2.0
#include "src/common/check.h"
#include "src/features/feature_state.h"
#include "src/features/id_bags.h"
#include "src/features/tensor_checks.h"

#include <ATen/ops/equal.h>

namespace tessera {

namespace {

const char* kind_of(const Feature& feature) {
  constexpr const char* kKinds[] = {"dense", "sparse", "ragged"};
  return kKinds[feature.index()];
}

bool same_values(const at::Tensor& left, const at::Tensor& right) {
  return left.is_same(right) ||
      (left.defined() && right.defined() && left.sizes() == right.sizes() &&
       at::equal(as_int64(left), as_int64(right)));
}

// Weights have a meaning only where ids are combined.
void check_takes_weights(const FeatureState& state, const Feature& feature) {
  TESSERA_CHECK_VALUE(
      !std::holds_alternative<at::Tensor>(feature),
      "{}weights are given, but the feature is dense. Leave the weights out, or pass a sparse or ragged feature.",
      where_of(state));
  const auto* sparse = std::get_if<SparseFeature>(&feature);
  const bool combines_positions = sparse != nullptr &&
      sparse->dense_shape.defined() && sparse->dense_shape.numel() > 2;
  TESSERA_CHECK_VALUE(
      state.config.sequence_length() == 0 || combines_positions,
      "{}weights are given, but this is a sequence feature, whose ids are not combined. Leave the weights out.",
      where_of(state));
}

// Weights that are a sparse or ragged feature must have the same positions as the ids.
void check_same_positions(
    const FeatureState& state,
    const Feature& feature,
    const Feature& weights) {
  TESSERA_CHECK_TYPE(
      weights.index() == feature.index(),
      "{}weights must be {} like the feature, or a tensor of one value per id, but are {}. Give each id its weight, in the order of the ids.",
      where_of(state),
      kind_of(feature),
      kind_of(weights));
  const auto* sparse = std::get_if<SparseFeature>(&feature);
  bool same = false;
  if (sparse != nullptr) {
    const auto& other = std::get<SparseFeature>(weights);
    same = same_values(other.indices, sparse->indices) &&
        same_values(other.dense_shape, sparse->dense_shape);
  } else {
    same = same_values(
        std::get<RaggedFeature>(weights).row_splits,
        std::get<RaggedFeature>(feature).row_splits);
  }
  TESSERA_CHECK_VALUE(
      same,
      "{}weights must have the same {} as the feature, but they differ. Pass those of the feature.",
      where_of(state),
      sparse != nullptr ? "indices and dense_shape" : "row_splits");
}

}  // namespace

at::Tensor flat_weights(
    const FeatureState& state,
    const Feature& feature,
    const std::optional<Feature>& weights) {
  if (!weights) {
    return {};
  }
  check_takes_weights(state, feature);
  if (!std::holds_alternative<at::Tensor>(*weights)) {
    check_same_positions(state, feature, *weights);
  }
  const at::Tensor& flat = values_of(*weights);
  const at::Tensor& ids = values_of(feature);
  check_tensor(state, flat, "weights");
  TESSERA_CHECK_TYPE(
      at::isFloatingType(flat.scalar_type()),
      "{}weights must be of a floating-point type, but got {}. Convert them with .to(torch::kFloat).",
      where_of(state),
      c10::toString(flat.scalar_type()));
  TESSERA_CHECK_VALUE(
      ids.defined() && flat.dim() == 1 && flat.numel() == ids.numel(),
      "{}weights must have one value per id, so shape [{}], but got shape {}. Pass a weight for each id.",
      where_of(state),
      ids.defined() ? ids.numel() : 0,
      flat.sizes());
  return flat.to(at::kFloat);
}

}  // namespace tessera
