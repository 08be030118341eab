// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/local_rows.h"

#include <tessera/engine/sharding_options.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::distributed {

/// Errors:  c10::ValueError beginning with `where`, for a rank that is none.
void check_placement(
    const std::string& table,
    const TablePlacement& placement,
    int64_t ranks,
    const std::string& where);

/// Where a table goes, checked.
/// Errors:  as above.
TablePlacement placement_of(
    const std::string& table,
    const ShardingOptions& options,
    int64_t ranks);

/// Which rank owns which row of a table.
///
/// Rows in the order of their owners have the keys 0, 1, ...: rank r owns keys
/// [begin(r), begin(r + 1)), and key - begin(r) is the row's index there.
class Partition {
 public:
  Partition(
      const TablePlacement& placement,
      int64_t vocabulary_size,
      int64_t ranks);

  int64_t begin(int64_t rank) const {
    return begin_[rank];
  }
  int64_t count(int64_t rank) const {
    return begin_[rank + 1] - begin_[rank];
  }
  uint32_t key_of(uint32_t row) const {
    if (!is_mod_) {
      return row;
    }
    const auto ranks = static_cast<uint32_t>(begin_.size() - 1);
    return static_cast<uint32_t>(begin_[row % ranks]) + row / ranks;
  }
  /// What `rank` owns; of a replicated table, all rows.
  LocalRows rows_of(int64_t rank) const;

 private:
  std::vector<int64_t> begin_;  // [ranks + 1]
  bool is_mod_ = false;
  bool is_data_parallel_ = false;
};

}  // namespace tessera::distributed
