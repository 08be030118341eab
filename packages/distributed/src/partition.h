// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <tessera/engine/sharding_options.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::distributed {

/// Errors:  c10::ValueError beginning with `where` if no table of `state` has one of
///          the names.
void check_placement_names(
    const EmbeddingState& state,
    const std::map<std::string, TablePlacement>& placement,
    const std::string& where);

/// The placement of a table.
/// Errors:  c10::ValueError beginning with `where` if `options.placement` has a rank that
///          does not exist, or makes a table with keys data-parallel.
TablePlacement placement_of(
    const std::string& table,
    const TableConfig& config,
    const ShardingOptions& options,
    int64_t ranks,
    const std::string& where = "[ShardingOptions]");

/// Says which rank owns which row of a table.
///
/// Keys number the rows in the order of their owners: rank r owns the keys
/// [begin(r), begin(r + 1)), and key - begin(r) is the local index of the row. These keys
/// are not the keys of TableConfig::keys.
///
/// The keys of TableConfig::keys are divided into KeyPartitions. Each rank owns whole
/// partitions and their rows, and the split has no effect.
class Partition {
 public:
  /// `rows` is the size of the vocabulary.
  Partition(const TablePlacement& placement, int64_t rows, int64_t ranks);
  Partition(
      const TablePlacement& placement,
      const TableConfig& table,
      int64_t ranks);

  /// `rank` owns the partitions of keys
  /// [first_partition(rank), first_partition(rank + 1)). Only for tables with
  /// TableConfig::keys.
  int64_t first_partition(int64_t rank) const {
    return first_partition_[rank];
  }

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
  /// The rows that `rank` holds: those that it owns, or all rows of a data-parallel
  /// table.
  LocalRows rows_of(int64_t rank) const;

 private:
  std::vector<int64_t> begin_;  // [ranks + 1]
  std::vector<int64_t> first_partition_ = {};  // [ranks + 1], or empty
  bool is_mod_ = false;
  bool is_data_parallel_ = false;
};

}  // namespace tessera::distributed
