// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>

#include "tests/test_util.h"

#include <cstddef>

namespace tessera::test {

using Rows = std::vector<std::vector<int64_t>>;

/// A ragged feature with these bags of ids, such as ragged({{3}, {}, {0, 1, 2}}).
inline RaggedFeature ragged(const Rows& rows) {
  std::vector<int64_t> values;
  std::vector<int64_t> splits{0};
  for (const auto& row : rows) {
    values.insert(values.end(), row.begin(), row.end());
    splits.push_back(static_cast<int64_t>(values.size()));
  }
  return {at::tensor(values, at::kLong), at::tensor(splits, at::kLong)};
}

/// A sparse feature with these bags of ids. The ids of a row begin in column 0.
inline SparseFeature sparse(const Rows& rows, int64_t columns) {
  std::vector<int64_t> indices;
  std::vector<int64_t> values;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t column = 0; column < rows[row].size(); ++column) {
      indices.push_back(static_cast<int64_t>(row));
      indices.push_back(static_cast<int64_t>(column));
      values.push_back(rows[row][column]);
    }
  }
  return {
      at::tensor(indices, at::kLong).view({-1, 2}),
      at::tensor(values, at::kLong),
      int64s({static_cast<int64_t>(rows.size()), columns})};
}

/// A feature with a table of its own.
inline FeatureConfig feature_of(const TableConfig& table) {
  return {.table = make_table(table)};
}

inline FeatureConfig feature_of(
    const std::string& table,
    int64_t rows,
    int64_t dim) {
  return feature_of({.name = table, .vocabulary_size = rows, .dim = dim});
}

}  // namespace tessera::test
