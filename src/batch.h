// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/embedding_state.h"
#include "src/id_bags.h"

#include <tessera/feature.h>

#include <ATen/core/Tensor.h>

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

}  // namespace tessera
