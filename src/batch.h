// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/embedding_state.h"
#include "src/id_bags.h"

#include <tessera/feature.h>

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
};

/// Checks all features and weights; `structure` is the nest of the configs.
/// Errors:  c10::ValueError, TypeError, IndexError naming the feature's path.
Batch read_batch(
    const Nest<FeatureConfig>& structure,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights);

/// Which features a forward pass is asked for: their indices in the nest of
/// `features`, or nullopt for a nest that is not smaller than `structure`.
/// Errors:  c10::ValueError naming the path of an unknown feature or, unless under
///          NoGradGuard, of a missing one.
std::optional<Nest<size_t>> part_of(
    const Nest<FeatureConfig>& structure,
    const Features& features);

/// As read_batch(), of the features in `part`; the others have no bags.
Batch read_part(
    const Nest<size_t>& part,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights);

}  // namespace tessera
