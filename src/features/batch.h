// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace tessera {

class SpareBags;

/// A checked batch. Each vector has one entry per feature, in the order of
/// FeatureSet::features.
struct Batch {
  std::vector<IdBags> bags = {};
  /// The flat float32 weights [nnz] of each feature, or an undefined tensor.
  std::vector<at::Tensor> weights = {};
  /// Takes `bags` when they are not needed any more. nullptr: they are destroyed.
  std::shared_ptr<SpareBags> spare = {};

  /// Returns IdBags::ragged_rows of each feature.
  std::vector<int64_t> ragged_rows() const;
};

/// Returns true if no feature has weights. `weights` is then the empty map, which is the
/// default, or an empty list for a list of features.
template <class T>
bool has_no_weights(const Weights& weights, const Nest<T>& structure) {
  return weights.empty() && (weights.is_map() || structure.is_list());
}

/// Checks all features and weights, and converts the features to bags. `structure` is
/// the nest of the configs.
/// Errors:  c10::ValueError, TypeError or IndexError naming the feature's path.
Batch read_batch(
    const Nest<FeatureConfig>& structure,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights);

/// Returns the index of each requested feature, in the nest of `features`, or nullopt if
/// `features` has at least as many leaves as `structure`.
/// Errors:  c10::ValueError naming the path of an unknown feature or, if gradients are
///          enabled, of a missing one.
std::optional<Nest<size_t>> part_of(
    const Nest<FeatureConfig>& structure,
    const Features& features);

/// Like part_of(), but features may be missing even if gradients are enabled.
std::optional<Nest<size_t>> some_part_of(
    const Nest<FeatureConfig>& structure,
    const Features& features);

/// Like read_batch(), but reads only the features in `part`. The others have no bags.
Batch read_part(
    const Nest<size_t>& part,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights);

}  // namespace tessera
