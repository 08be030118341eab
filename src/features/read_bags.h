// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

// There is one function for each kind of feature but dense ones, in a source file with its
// name. make_id_bags() chooses between them and documents them.

IdBags read_sparse_bags(
    const FeatureState& feature,
    const SparseFeature& input,
    const at::Tensor& weights);

IdBags read_ragged_bags(
    const FeatureState& feature,
    const RaggedFeature& input,
    const at::Tensor& weights);

/// Returns an IdBags that has the combiner, batch_shape and dim, but no bags yet. The
/// functions above begin with it.
IdBags bags_without_ids(
    const FeatureState& feature,
    std::vector<int64_t> batch_shape);

}  // namespace tessera
