// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/rank_group.h"
#include "src/distributed/partition.h"
#include "src/distributed/route.h"
#include "src/engine/embedding_state.h"
#include "src/engine/table_update.h"

#include <tessera/engine/sharding_options.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tessera::distributed {

/// Tables whose rows travel as one tensor, [rows, dim].
struct TableGroup {
  int64_t dim = 0;
  at::ScalarType dtype = at::kFloat;
  bool is_updated = false;
  std::vector<size_t> tables = {};
};

struct FetchedRows {
  /// One per table; tables of one group share theirs. Of a replicated table, its
  /// own.
  std::vector<at::Tensor> rows = {};
  std::shared_ptr<const Route> route = {};
};

/// Brings the rows of a batch from their owners, and their gradients back.
class RowExchange {
 public:
  /// Errors:  c10::ValueError for unusable options.
  RowExchange(
      const EmbeddingState& state,
      std::shared_ptr<RankGroup> ranks,
      const ShardingOptions& options);

  /// Ids of `bags` become positions in what comes. Collective.
  FetchedRows fetch(std::vector<IdBags>& bags);

  /// One sum per distinct row of `route`'s batch, by its position, to the owners.
  /// Gives what has come for the rows that others, and this rank, have asked for,
  /// at their positions. Collective.
  std::function<at::Tensor()> return_gradients(
      size_t group,
      const Route& route,
      const std::vector<RowGradients>& sums) const;

  const std::vector<TableGroup>& groups() const {
    return groups_;
  }
  /// Whether rows of the table travel: it is not replicated.
  bool is_split(size_t table) const {
    return group_of_[table] != kNoGroup;
  }
  size_t group_of(size_t table) const {
    return group_of_[table];
  }

 private:
  // What this rank wants of a table.
  struct Wanted {
    Buffer<uint32_t> keys = {};  // distinct, ascending
    std::vector<int64_t> begin = {};  // [ranks + 1], of each owner's
    std::vector<int64_t> position = {};  // [ranks], of each owner's first
  };

  static constexpr size_t kNoGroup = static_cast<size_t>(-1);

  void group_tables();
  // Distinct keys of one table; ids become indices of these.
  Wanted find_distinct(size_t table, std::vector<IdBags>& bags) const;
  std::vector<int64_t> count_words(const std::vector<Wanted>& wanted) const;
  at::Tensor pack_ids(
      const std::vector<Wanted>& wanted,
      const std::vector<int64_t>& words) const;
  // What each rank asks for, from the words that came.
  void read_asked(
      const at::Tensor& ids,
      const std::vector<int64_t>& words,
      Route& route) const;
  void place_wanted(std::vector<Wanted>& wanted, Route& route) const;
  at::Tensor gather_asked(size_t group, const Route& route) const;
  void number_ids(const std::vector<Wanted>& wanted, std::vector<IdBags>& bags)
      const;
  at::Tensor pack_gradients(
      size_t group,
      const Route& route,
      const std::vector<RowGradients>& sums) const;

  const EmbeddingState& state_;
  std::shared_ptr<RankGroup> ranks_;
  ShardingOptions options_;
  std::vector<Partition> partitions_;  // one per table
  std::vector<size_t> group_of_;  // one per table; kNoGroup: replicated
  std::vector<TableGroup> groups_;
  uint64_t lookups_ = 0;
};

}  // namespace tessera::distributed
