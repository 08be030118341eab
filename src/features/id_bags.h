// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/buffer.h"

#include <tessera/features/feature.h>
#include <tessera/tables/table_config.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace tessera {

struct FeatureState;

/// Looks up zeros: an id >= vocabulary_size under OutOfRange::kZero.
inline constexpr uint32_t kZeroRow = std::numeric_limits<uint32_t>::max();

/// One feature, checked and brought to one form: bag b holds ids
/// [offsets[b], offsets[b + 1]). Dense ids and the positions of a sequence are bags,
/// too, so that one lookup and one update serve every kind of feature.
struct IdBags {
  Buffer<uint32_t> ids;  // [nnz], each < vocab or kZeroRow
  Buffer<int64_t> offsets;  // [bags + 1]; empty: bag b holds id b
  Buffer<float> weights;  // [nnz]; empty: ones
  /// The combiner's 1 / denominator, 0 where that is 0.
  Buffer<float> scales;  // [bags]; empty: ones
  /// Positions of the ids among the caller's values; empty: all, in order.
  Buffer<int64_t> kept;  // [nnz]
  Combiner combiner = Combiner::kSum;
  int64_t bags = 0;
  /// How many ids are kZeroRow.
  int64_t zero_rows = 0;
  /// Of the activation, without dim.
  std::vector<int64_t> batch_shape = {};
  int64_t dim = 0;
  /// The number of rows of a ragged feature with a fully known output_shape; else -1.
  int64_t ragged_rows = -1;

  int64_t nnz() const {
    return static_cast<int64_t>(ids.size());
  }
  int64_t begin(int64_t bag) const {
    return offsets.empty() ? bag : offsets[bag];
  }
  int64_t end(int64_t bag) const {
    return offsets.empty() ? bag + 1 : offsets[bag + 1];
  }
  /// The caller's position of id i.
  int64_t position(int64_t i) const {
    return kept.empty() ? i : kept[i];
  }
  std::vector<int64_t> activation_shape() const;
};

/// A tensor of sparse COO layout as a SparseFeature; anything else as it is.
Feature with_sparse_as_feature(const Feature& feature);

/// Checks everything about one feature of a batch and copies its ids.
///
/// `weights` is what flat_weights() in flat_weights.h gave.
/// Errors:  c10::TypeError (dtype, device, kind), ValueError (shape, offsets,
///          indices) or IndexError (id out of range), naming path and position.
IdBags make_id_bags(
    const FeatureState& state,
    const Feature& feature,
    const at::Tensor& weights);

/// Makes empty bags for a feature that was not requested.
IdBags make_no_bags(const FeatureState& state);

/// Sets the scales from the combiner, the weights and the numbers of ids.
void compute_scales(IdBags& bags);

/// Removes ids that look up zeros; their weights stay in the denominators.
void drop_zero_rows(IdBags& bags);

}  // namespace tessera
