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

/// The ids of a feature and their weights, in the order of the caller's values.
struct IdValues {
  /// Each < vocab or kZeroRow. With a key table, ids[i] is i or kZeroRow.
  Buffer<uint32_t> ids = {};  // [nnz]
  Buffer<int64_t> keys = {};  // [nnz] with a key table, else empty
  Buffer<float> weights = {};  // [nnz]; empty: ones
  /// Whether an id is dropped because of its value or its weight.
  std::vector<char> is_dropped = {};  // [nnz]; empty: no id is dropped
  /// The numbers of ids that are kZeroRow, see IdBags.
  int64_t zero_rows = 0;
  int64_t padding = 0;
};

/// Checks and copies the ids of a dense feature. None is dropped, because each id has its
/// own vector in the activation.
/// Errors:  c10::IndexError for an id out of range, naming its position; ValueError for
///          2^32 - 1 ids or more.
IdValues read_dense_ids(const FeatureState& feature, const at::Tensor& ids);

/// Checks and copies the ids of a sparse or ragged feature and their weights. `weights`
/// may be undefined. Ids that are dropped because of their weight are not checked, and
/// neither are those whose entry in `bag_indices` is kNoBag. If `bag_indices` is empty,
/// each id is in a bag.
/// Errors:  the same as read_dense_ids().
IdValues read_id_values(
    const FeatureState& feature,
    const at::Tensor& values,
    const at::Tensor& weights,
    const BagIndices& bag_indices);

/// Fills `bags` with the values that are not dropped. Within a bag they keep their order.
/// IdBags::bags must be set.
void sort_into_bags(
    const IdValues& values,
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
