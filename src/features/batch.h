// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace tessera {

/// A checked batch, in the order of EmbeddingState::features.
struct Batch {
  std::vector<IdBags> bags = {};
  /// Flat float32 weights [nnz] of each feature, undefined where absent.
  std::vector<at::Tensor> weights = {};

  /// IdBags::ragged_rows of each feature.
  std::vector<int64_t> ragged_rows() const;
};

/// Checks all features and weights; `structure` is the nest of the configs.
/// Errors:  c10::ValueError, TypeError, IndexError naming the feature's path.
Batch read_batch(
    const Nest<FeatureConfig>& structure,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights);

/// The indices of the requested features, in the nest of `features`. nullopt if
/// `features` has no fewer leaves than `structure`.
/// Errors:  c10::ValueError naming the path of an unknown feature or, unless under
///          NoGradGuard, of a missing one.
std::optional<Nest<size_t>> part_of(
    const Nest<FeatureConfig>& structure,
    const Features& features);

/// Like read_batch(), but reads only the features in `part`. The others have no bags.
Batch read_part(
    const Nest<size_t>& part,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights);

}  // namespace tessera
