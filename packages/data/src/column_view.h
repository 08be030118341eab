// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

// The transforms read columns through views, so that they work on tensors in training and
// on plain memory in serving. The sources that use only views are compiled without
// LibTorch for the library of packages/serving.

namespace tessera::data {

inline bool is_missing(int64_t value) {
  return value == kMissing;
}
inline bool is_missing(float value) {
  return std::isnan(value);
}
inline bool is_missing(const std::string& value) {
  return value.empty();
}

/// Maps floats to integers with the same order. 0 and -0 become equal.
inline int64_t ordered(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  return bits >= 0 ? bits : std::numeric_limits<int32_t>::min() - int64_t{bits};
}
/// The float that ordered() has mapped, but 0 for -0.
inline float float_of(int64_t ordered) {
  const int64_t bits =
      ordered >= 0 ? ordered : std::numeric_limits<int32_t>::min() - ordered;
  return std::bit_cast<float>(static_cast<int32_t>(bits));
}
inline int64_t ordered(int64_t value) {
  return value;
}

/// A column in memory that somebody else owns.
struct ColumnView {
  /// [batch]. With row_splits, the values of all examples one after the other.
  std::variant<
      std::span<const int64_t>,
      std::span<const float>,
      std::span<const std::string>>
      values = {};
  /// [batch + 1]. Example i has the values [row_splits[i], row_splits[i + 1]).
  std::optional<std::span<const int64_t>> row_splits = {};

  size_t size() const;
  /// The number of examples.
  int64_t batch_size() const;
  /// kInt64, kFloat32 or kText.
  ColumnType type() const;
};

/// "integers", "floats" or "text", for messages.
const char* kind_of(ColumnType type);
const char* kind_of(const ColumnView& column);

/// Checks that row splits ascend from 0 to the number of values.
/// Errors:  c10::ValueError naming the column.
void check_row_splits(
    std::span<const int64_t> row_splits,
    int64_t num_values,
    std::string_view column);

/// Checks a column that is added to a batch. `batch_size` is the number of examples of the
/// columns that the batch already has, if it has any.
/// Errors:  c10::ValueError if the batch has a column of this name, or if the number of
///          examples differs.
void check_added_column(
    std::string_view name,
    bool has_name,
    std::optional<int64_t> batch_size,
    int64_t num_examples);

}  // namespace tessera::data
