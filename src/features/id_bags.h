// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/buffer.h"

#include <tessera/features/feature.h>
#include <tessera/tables/table_config.h>

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace tessera {

struct FeatureState;
struct InitialValues;

/// Stands for an id that is out of range under OutOfRange::kZero, and for the padding key
/// of a key table. It looks up zeros.
inline constexpr uint32_t kZeroRow = std::numeric_limits<uint32_t>::max();

/// The checked ids of one feature, as bags. Bag b holds the ids at
/// [offsets[b], offsets[b + 1]). Each dense id and each position of a sequence is a bag,
/// too, so that one lookup and one update serve every kind of feature.
struct IdBags {
  Buffer<uint32_t> ids;  // [nnz], each < vocab or kZeroRow
  /// The keys of a feature with a key table, else empty. Before the lookup, `ids` are
  /// positions in the keys. Afterwards, ids[i] is the row of keys[i].
  Buffer<int64_t> keys;
  /// How often each key occurred, [nnz]; empty: once.
  Buffer<uint32_t> key_counts;
  /// The unknown keys that the lookup has replaced by the default key of the table. `keys`
  /// has the default key in their place. An update counts them, but they get no gradient.
  Buffer<int64_t> unknown_keys;
  /// How often each unknown key occurred, [unknown_keys].
  Buffer<uint32_t> unknown_counts;
  /// KeyIndex::version() at the lookup.
  uint64_t keys_version = 0;
  /// KeyIndex::insertions() at the lookup.
  uint64_t keys_insertions = 0;
  /// The initial values of the new keys of the batch; nullptr: there are none.
  std::shared_ptr<const InitialValues> initial_values = {};
  Buffer<int64_t> offsets;  // [bags + 1]; empty: bag b holds only ids[b]
  Buffer<float> weights;  // [nnz]; empty: ones
  /// 1 / denominator of the combiner, or 0 if the denominator is 0.
  Buffer<float> scales;  // [bags]; empty: ones
  /// The position of each id in the caller's values. Empty: all values are kept, in
  /// their order.
  Buffer<int64_t> kept;  // [nnz]
  Combiner combiner = Combiner::kSum;
  int64_t bags = 0;
  /// The number of ids that are kZeroRow because they are out of range.
  int64_t zero_rows = 0;
  /// The number of ids that are kZeroRow because they are the padding key.
  int64_t padding = 0;
  /// The shape of the activation, without dim.
  std::vector<int64_t> batch_shape = {};
  int64_t dim = 0;
  /// The number of rows of a ragged feature with a fully known output_shape; else -1.
  int64_t ragged_rows = -1;

  int64_t nnz() const {
    return static_cast<int64_t>(ids.size());
  }
  /// The number of ids that are kZeroRow.
  int64_t zero_ids() const {
    return zero_rows + padding;
  }
  int64_t begin(int64_t bag) const {
    return offsets.empty() ? bag : offsets[bag];
  }
  int64_t end(int64_t bag) const {
    return offsets.empty() ? bag + 1 : offsets[bag + 1];
  }
  /// The position of ids[i] in the caller's values.
  int64_t position(int64_t i) const {
    return kept.empty() ? i : kept[i];
  }
  at::DimVector activation_shape() const;
};

/// Whether the feature is a tensor of sparse COO layout.
bool has_sparse_layout(const Feature& feature);

/// Converts a tensor of sparse COO layout to a SparseFeature. Returns any other feature
/// as it is.
Feature with_sparse_as_feature(const Feature& feature);

/// Returns the per-id weights of `feature` as a float32 vector [nnz] in the order of its
/// values, or an undefined tensor if there are none. Gradients flow back to `weights`.
/// Errors:  c10::ValueError or TypeError naming the path, for weights of a dense feature or
///          of a sequence whose ids are not combined, and for weights of a wrong kind,
///          length or dtype, or at other positions than the ids.
at::Tensor flat_weights(
    const FeatureState& state,
    const Feature& feature,
    const std::optional<Feature>& weights);

/// Checks everything about one feature of a batch and copies its ids.
///
/// `weights` is the result of flat_weights().
/// Errors:  c10::TypeError (dtype, device, kind), ValueError (shape, offsets,
///          indices) or IndexError (id out of range), naming path and position.
IdBags make_id_bags(
    const FeatureState& state,
    const Feature& feature,
    const at::Tensor& weights);

/// Makes empty bags for a feature that was not requested.
IdBags make_empty_bags(const FeatureState& state);

/// Computes IdBags::scales from the combiner, the weights and the sizes of the bags.
void compute_scales(IdBags& bags);

/// Removes the ids that are kZeroRow. The scales stay, so the weights of these ids
/// still count in the denominators. Afterwards, position() must not be called.
void drop_zero_rows(IdBags& bags);

}  // namespace tessera
