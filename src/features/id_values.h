// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/buffer.h"
#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// The number of the bag of each value, or kNoBag for a value that is in no bag.
using BagIndices = Buffer<int64_t>;  // [nnz]

/// Reading an id takes about as long as moving this number of bytes.
inline constexpr int64_t kIdReadBytes = 32;

/// Marks a value that is in no bag, such as one past the end of a sequence.
inline constexpr int64_t kNoBag = -1;

/// Checks and copies the ids of a dense feature into `bags`. None is dropped, because each
/// id has its own vector in the activation.
/// Errors:  c10::IndexError for an id out of range, naming its position; ValueError for
///          2^32 - 1 ids or more.
void read_dense_ids(
    const FeatureState& feature,
    const at::Tensor& ids,
    IdBags& bags);

/// Checks and copies the ids of a sparse or ragged feature and their weights into `bags`, in
/// the order of the caller's values. `weights` may be undefined. Ids that are dropped
/// because of their weight are not checked, and neither are those whose entry in
/// `bag_indices` is kNoBag. If `bag_indices` is empty, each id is in a bag. Returns whether
/// each id is dropped because of its value or its weight, [nnz], or an empty vector if no
/// id is dropped.
/// Errors:  the same as read_dense_ids().
std::vector<char> read_id_values(
    const FeatureState& feature,
    const at::Tensor& values,
    const at::Tensor& weights,
    const BagIndices& bag_indices,
    IdBags& bags);

/// Sorts the values in `bags` that are not dropped into bags. Within a bag they keep their
/// order. IdBags::bags must be set.
void sort_into_bags(
    const std::vector<char>& is_dropped,
    BagIndices bag_indices,
    IdBags& bags);

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
