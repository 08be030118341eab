// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::data {

/// Stands for a missing value in an integer column. In a float column, NaN stands for a
/// missing value, and in a text column, the empty string does.
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

// snippet: tests/docs/reference_sources_test.cpp ColumnTypes
/// The types of columns, by name. For a reader, a name that the files do not have is an
/// error, unless the types are those of FeaturePipeline::types():
///
///   ColumnTypes types = pipeline.types();
///   types["time"] = ColumnType::kInt64;
///   const auto source =
///       make_csv_source({.files = {"clicks.csv"}, .types = types});
struct ColumnTypes : std::map<std::string, ColumnType> {
  using Map = std::map<std::string, ColumnType>;
  using Map::Map;
  ColumnTypes(Map types) : Map(std::move(types)) {}

  /// If true, readers ignore names that no file has. FeaturePipeline::types() sets this,
  /// because a pipeline also reads columns that Dataset::map() makes.
  bool may_name_other_columns = false;
};

/// "int64", "float32", "text", "uint64_bits".
std::string to_string(ColumnType type);
/// Errors:  c10::ValueError listing the names.
ColumnType column_type_from_string(std::string_view name);

}  // namespace tessera::data
