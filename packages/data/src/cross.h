// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>

#include <cstdint>
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
  at::Tensor row_splits;  // undefined when all columns have single values
};

/// Hashes all combinations of the columns' values, example by example.
/// Errors:  c10::ValueError beginning with `where` if there are too many.
CrossedHashes cross_columns(
    const std::vector<const Column*>& columns,
    uint64_t seed,
    const std::string& where);

}  // namespace tessera::data
