// SPDX-License-Identifier: Apache-2.0
#include "packages/distributed/src/partition.h"

#include <tessera/common/shorten.h>

#include <algorithm>

#include "src/common/check.h"
#include "src/tables/key_table_rows.h"

namespace tessera::distributed {

void check_placement_names(
    const EmbeddingState& state,
    const std::map<std::string, TablePlacement>& placement,
    const std::string& where) {
  for (const auto& entry : placement) {
    const std::string& name = entry.first;
    TESSERA_CHECK_VALUE(
        std::ranges::find(state.tables, name, &TableState::name) !=
            state.tables.end(),
        "{} placement must name tables that a feature uses, but names '{}'. Correct the name.",
        where,
        shorten(name));
  }
}

TablePlacement placement_of(
    const std::string& table,
    const TableConfig& config,
    const ShardingOptions& options,
    int64_t ranks,
    const std::string& where) {
  const auto found = options.placement.find(table);
  if (found == options.placement.end()) {
    return TablePlacement::row_wise(options.split);
  }
  const TablePlacement& placement = found->second;
  TESSERA_CHECK_VALUE(
      placement.kind != TablePlacement::Kind::kTableWise ||
          (placement.rank >= 0 && placement.rank < ranks),
      "{} table '{}' is placed on rank {}, but the ranks are 0 to {}. Correct its placement.",
      where,
      shorten(table),
      placement.rank,
      ranks - 1);
  TESSERA_CHECK_VALUE(
      !config.keys || placement.kind != TablePlacement::Kind::kDataParallel,
      "{} table '{}' has keys, so it can't be data-parallel, because the update of a data-parallel table sends all of its rows. Use TablePlacement::row_wise() or table_wise().",
      where,
      shorten(table));
  return placement;
}

Partition::Partition(
    const TablePlacement& placement,
    const TableConfig& table,
    int64_t ranks)
    : Partition(placement, table.max_rows(), ranks) {
  if (!table.keys) {
    return;
  }
  const KeyPartitions partitions(table.keys->capacity);
  const Partition owners(
      {.kind = placement.kind, .rank = placement.rank},
      partitions.count(),
      ranks);
  first_partition_ = owners.begin_;
  is_mod_ = false;
  for (int64_t rank = 0; rank <= ranks; ++rank) {
    begin_[rank] = partitions.first_row(first_partition_[rank]);
  }
}

Partition::Partition(
    const TablePlacement& placement,
    int64_t rows,
    int64_t ranks)
    : begin_(ranks + 1, 0),
      is_mod_(
          placement.kind == TablePlacement::Kind::kRowWise &&
          placement.split == RowSplit::kMod),
      is_data_parallel_(placement.kind == TablePlacement::Kind::kDataParallel) {
  const int64_t each = rows / ranks;
  const int64_t rest = rows % ranks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t count = each + (rank < rest ? 1 : 0);
    if (placement.kind == TablePlacement::Kind::kTableWise) {
      count = rank == placement.rank ? rows : 0;
    }
    begin_[rank + 1] = begin_[rank] + count;
  }
}

LocalRows Partition::rows_of(int64_t rank) const {
  if (is_data_parallel_) {
    return {
        .count = begin_.back(), .is_data_parallel = true, .is_copy = rank != 0};
  }
  if (is_mod_) {
    const auto ranks = static_cast<int64_t>(begin_.size()) - 1;
    return {.numbers = {.first = rank, .step = ranks}, .count = count(rank)};
  }
  return {.numbers = {.first = begin(rank)}, .count = count(rank)};
}

}  // namespace tessera::distributed
