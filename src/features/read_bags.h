// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

// One function for each kind of feature; make_id_bags() chooses between them and
// documents them. Each has a source file of its name.

IdBags read_dense_bags(const FeatureState& feature, const at::Tensor& ids);

IdBags read_sparse_bags(
    const FeatureState& feature,
    const SparseFeature& input,
    const at::Tensor& weights);

IdBags read_ragged_bags(
    const FeatureState& feature,
    const RaggedFeature& input,
    const at::Tensor& weights);

/// What these functions begin with: no bags yet for an activation of this shape.
IdBags bags_without_ids(
    const FeatureState& feature,
    std::vector<int64_t> batch_shape);

}  // namespace tessera
