// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace tessera::data {

/// Stands for a missing value in an integer column. In float columns, NaN does, and in
/// text columns the empty string.
inline constexpr int64_t kMissing = std::numeric_limits<int64_t>::min();

/// The types of values that a Column may have.
enum class ColumnType {
  kInt64,
  kFloat32,
  kText,
  /// Only for readers. An integer from 0 to 2^64 - 1, such as a hash of pandas, becomes the
  /// int64 with the same bits: 2^64 - 1 becomes -1. 2^63 is an error, because its bits are
  /// kMissing. Use the result as a key of a table with TableConfig::keys, or hash it.
  kUInt64Bits
};

/// "int64", "float32", "text", "uint64_bits".
std::string to_string(ColumnType type);
/// Errors:  c10::ValueError listing the names.
ColumnType column_type_from_string(std::string_view name);

}  // namespace tessera::data
