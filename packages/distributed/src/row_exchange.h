// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/rank_group.h"
#include "src/engine/embedding_state.h"
#include "src/engine/table_store.h"

#include <tessera/engine/sharding_options.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::distributed {

/// The rows of one lookup that this rank requested from each rank, and the rows that it
/// served to each rank. Gradients travel the same way back.
///
/// Tables whose rows travel as one tensor [rows, dim] form a group. The rows of a group are
/// ordered by rank, then by table. The index of a row in the tensor is its position.
struct Route : LookupRoute {
  struct Group {
    std::vector<int64_t> requested = {};  // rows received from each rank
    std::vector<int64_t> served = {};  // rows sent to each rank
    int64_t requested_count = 0;
    int64_t served_count = 0;
  };
  /// The rows of one table that this rank served to all ranks, including itself.
  struct ServedRows {
    /// Local rows, one per bag, in the order of the ranks. For a key table, `keys` and
    /// their rows are as after find_table_keys().
    IdBags rows = {};
    Buffer<uint32_t> positions = {};  // of each row in its group
    std::vector<int64_t> begin = {};  // [ranks + 1], of the rows of each rank
  };

  uint64_t number = 0;  // of the lookup: 1, 2, ...
  std::vector<Group> groups = {};
  std::vector<ServedRows> served = {};  // one per table
};

/// Tables whose rows travel as one tensor, [rows, stored_columns(dim, dtype)].
struct TableGroup {
  int64_t dim = 0;
  at::ScalarType dtype = at::kFloat;
  bool is_updated = false;
  std::vector<size_t> tables = {};
};

struct FetchedRows {
  /// One tensor per table. Tables of one group share a tensor; a data-parallel table
  /// has its own parameters.
  std::vector<at::Tensor> rows = {};
  std::shared_ptr<const Route> route = {};
};

/// Fetches the rows of a batch from their owners, and sends their gradients to the owners.
class RowExchange {
 public:
  /// Positions have 32 bits.
  static constexpr int64_t kMaxRows = std::numeric_limits<uint32_t>::max();

  virtual ~RowExchange() = default;

  /// Replaces the ids of `bags` by positions in the fetched rows, and clears their keys.
  /// The owner of a key applies `unknown` once it has the occurrences of all ranks.
  /// Ids of unknown keys get the position of the default key, if there is one.
  /// Collective.
  virtual FetchedRows fetch(std::vector<IdBags>& bags, UnknownKeys unknown) = 0;

  /// Starts to send the gradients of one group to the owners of its rows. `sums` has one
  /// sum for each distinct row of the batch of `route`, at the position of the row. If
  /// `sums` is empty, zeros are sent. The returned function waits and returns the
  /// gradients of the rows that this rank served, at their positions. Collective.
  virtual std::function<at::Tensor()> return_gradients(
      size_t group,
      const Route& route,
      const std::vector<RowGradients>& sums) const = 0;

  virtual const std::vector<TableGroup>& groups() const = 0;
  /// The group of a table whose rows travel between ranks. Nothing: data-parallel.
  virtual std::optional<size_t> group_of(size_t table) const = 0;
};

/// One lookup must request fewer than `max_rows` rows, and all ranks together must request
/// fewer from one rank.
/// Errors:  c10::ValueError for unusable options.
std::unique_ptr<RowExchange> make_row_exchange(
    const EmbeddingState& state,
    std::shared_ptr<RankGroup> ranks,
    const ShardingOptions& options,
    int64_t max_rows = RowExchange::kMaxRows);

}  // namespace tessera::distributed
