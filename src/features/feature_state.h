// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// A number that several threads may change at the same time. Unlike std::atomic, it
/// can be copied.
class AtomicCount {
 public:
  AtomicCount(int64_t value = 0)  // NOLINT(google-explicit-constructor)
      : value_(value) {}
  AtomicCount(const AtomicCount& other) : value_(other.value_.load()) {}
  AtomicCount& operator=(const AtomicCount& other) {
    value_ = other.value_.load();
    return *this;
  }

  operator int64_t() const {  // NOLINT(google-explicit-constructor)
    return value_;
  }
  AtomicCount& operator+=(int64_t difference) {
    value_ += difference;
    return *this;
  }
  /// Sets the number to `value` if it is `before`. Returns the new number.
  int64_t set_once(int64_t before, int64_t value) {
    return value_.compare_exchange_strong(before, value) ? value : before;
  }

 private:
  std::atomic<int64_t> value_;
};

/// One feature of a layer.
struct FeatureState {
  /// The name in the config, or else the path in the nest.
  std::string path = {};
  FeatureConfig config = {};
  size_t table = 0;  // index of its table in the layer
  /// The known part of the activation's shape, without dim.
  std::optional<PartialShape> output_shape = {};
  /// Whether a batch must agree with output_shape.
  bool verifies_shape = true;
  /// The number of rows of every ragged batch, if the output_shape is fully known. The
  /// first batch fixes it, so that the size of a batch never decides whether a row is a
  /// bag or a sequence. -1 before the first batch. Copies of the layer and exported files
  /// keep it, but checkpoints do not.
  AtomicCount ragged_rows = -1;
};

/// "[feature 'path'] ", the beginning of messages about a feature.
std::string where_of(const FeatureState& feature);

/// The features of a layer, in the order of its nest, and what is known about their
/// output shapes.
struct FeatureSet {
  std::vector<FeatureState> features = {};
  /// Whether the output shapes are known. Some first dimensions may still be unknown.
  bool is_built = false;
  /// Whether the first dimension must be the same for all features of all batches.
  bool fixed_batch_size = false;
};

/// Makes the states of all features, in the order of the nest. `table_of` returns
/// FeatureState::table.
/// Errors:  c10::ValueError naming the feature, for an invalid config.
std::vector<FeatureState> feature_states(
    const Nest<FeatureConfig>& features,
    c10::function_ref<size_t(const FeatureState&)> table_of);

}  // namespace tessera
