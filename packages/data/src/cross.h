// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/data/src/column_view.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

struct ValueHash {
  uint64_t hash = 0;
  bool has_missing = false;
};

inline bool is_missing(const ValueHash& value) {
  return value.has_missing;
}

struct CrossedHashes {
  std::vector<ValueHash> hashes;
  /// Without a value when all columns have single values.
  std::optional<std::vector<int64_t>> row_splits;
};

/// Hashes all combinations of the columns' values, example by example.
/// Errors:  c10::ValueError beginning with `where` if there are too many.
CrossedHashes cross_columns(
    std::span<const ColumnView* const> columns,
    uint64_t seed,
    const std::string& where);

}  // namespace tessera::data
