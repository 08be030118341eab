// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/partition.h"

#include <tessera/common/shorten.h>

#include <algorithm>

#include "src/common/check.h"

namespace tessera::distributed {

void check_split(RowSplit split, const std::string& where) {
  check_enumerator(
      split,
      RowSplit::kMod,
      where,
      "split",
      "RowSplit::kDiv or RowSplit::kMod");
}

void check_placement(
    const std::string& table,
    const TablePlacement& placement,
    int64_t ranks,
    const std::string& where) {
  const std::string of_table =
      where + " placement of table '" + shorten(table) + "':";
  check_enumerator(
      placement.kind,
      TablePlacement::Kind::kTableWise,
      of_table,
      "kind",
      "Kind::kRowWise, kDataParallel or kTableWise");
  check_split(placement.split, of_table);
  TESSERA_CHECK_VALUE(
      placement.kind != TablePlacement::Kind::kTableWise ||
          (placement.rank >= 0 && placement.rank < ranks),
      "{} table '{}' is placed on rank {}, but the ranks are 0 to {}. Correct its placement.",
      where,
      shorten(table),
      placement.rank,
      ranks - 1);
}

void check_placement_names(
    const EmbeddingState& state,
    const std::map<std::string, TablePlacement>& placement,
    const std::string& where) {
  for (const auto& entry : placement) {
    const std::string& name = entry.first;
    TESSERA_CHECK_VALUE(
        std::any_of(
            state.tables.begin(),
            state.tables.end(),
            [&](const TableState& table) { return table.name == name; }),
        "{} placement must name tables that a feature uses, but names '{}'. Correct the name.",
        where,
        shorten(name));
  }
}

TablePlacement placement_of(
    const std::string& table,
    const ShardingOptions& options,
    int64_t ranks) {
  check_split(options.split, "[ShardingOptions]");
  const auto found = options.placement.find(table);
  if (found == options.placement.end()) {
    return TablePlacement::row_wise(options.split);
  }
  check_placement(table, found->second, ranks, "[ShardingOptions]");
  return found->second;
}

Partition::Partition(
    const TablePlacement& placement,
    int64_t vocabulary_size,
    int64_t ranks)
    : begin_(ranks + 1, 0),
      is_mod_(
          placement.kind == TablePlacement::Kind::kRowWise &&
          placement.split == RowSplit::kMod),
      is_data_parallel_(placement.kind == TablePlacement::Kind::kDataParallel) {
  const int64_t each = vocabulary_size / ranks;
  const int64_t rest = vocabulary_size % ranks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t count = each + (rank < rest ? 1 : 0);
    if (placement.kind == TablePlacement::Kind::kTableWise) {
      count = rank == placement.rank ? vocabulary_size : 0;
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
