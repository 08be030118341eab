// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/distributed/src/partition.h"
#include "src/common/buffer.h"
#include "src/common/rank_group.h"
#include "src/engine/embedding_state.h"
#include "src/engine/find_keys.h"
#include "src/engine/table_store.h"
#include "src/engine/table_update.h"
#include "src/features/id_bags.h"

#include <tessera/engine/sharding_options.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::distributed {

/// Which rows of one lookup this rank requested from each rank, and which ones it
/// served to them. Gradients travel the same way back.
///
/// Tables whose rows travel as one tensor [rows, dim] form a group. Its rows are
/// ordered by rank, then by table. Their indices in the tensor are called positions.
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

/// Tables whose rows travel as one tensor, [rows, dim].
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

/// Fetches the rows of a batch from their owners and returns their gradients to them.
class RowExchange {
 public:
  /// Positions have 32 bits.
  static constexpr int64_t kMaxRows = std::numeric_limits<uint32_t>::max();

  /// One lookup must request fewer than `max_rows` rows, and so must all ranks together
  /// from one rank.
  /// Errors:  c10::ValueError for unusable options.
  RowExchange(
      const EmbeddingState& state,
      std::shared_ptr<RankGroup> ranks,
      const ShardingOptions& options,
      int64_t max_rows = kMaxRows);

  /// Replaces the ids of `bags` by positions in the fetched rows, and clears their keys.
  /// The owner of a key decides about `unknown` when it has the occurrences of all ranks.
  /// Ids of unknown keys get the position of the default key, if there is one.
  /// Collective.
  FetchedRows fetch(std::vector<IdBags>& bags, UnknownKeys unknown);

  /// Starts to send the gradients of one group to the owners of its rows. `sums` has
  /// one sum per distinct row of `route`'s batch, at its position; without any, zeros are
  /// sent. The returned function waits and returns the gradients of the rows that this
  /// rank served, at their positions. Collective.
  std::function<at::Tensor()> return_gradients(
      size_t group,
      const Route& route,
      const std::vector<RowGradients>& sums) const;

  const std::vector<TableGroup>& groups() const {
    return groups_;
  }
  /// Whether the rows of the table travel between ranks; false: data-parallel.
  bool is_sharded(size_t table) const {
    return group_of_[table] != kNoGroup;
  }
  size_t group_of(size_t table) const {
    return group_of_[table];
  }

 private:
  // The rows of a table that this rank requests.
  struct Request {
    Buffer<uint32_t> rows = {};  // distinct, ascending keys of a Partition, or
    Buffer<int64_t> keys = {};  // distinct keys of a key table, by hash,
    Buffer<uint32_t> key_counts = {};  // and their occurrences
    std::vector<int64_t> begin = {};  // [ranks + 1], the range of each owner
    std::vector<int64_t> position = {};  // [ranks], of each owner's first row
    // The index of the default key, which is among `keys` even if it does not occur.
    std::optional<int64_t> default_index = {};
    Buffer<uint32_t> is_unknown = {};  // the keys that look up the default key
  };

  // A range of the rows of one table that one task copies.
  struct Run {
    size_t table;
    int64_t begin;
    int64_t end;
  };

  static constexpr size_t kNoGroup = static_cast<size_t>(-1);

  void group_tables();
  bool is_key_table(size_t table) const {
    return state_.tables[table].key_rows != nullptr;
  }
  // The bags of the features of one table.
  // Errors:  c10::ValueError for 2^32 - 1 ids or more, because 32 bits number them.
  std::vector<IdBags*> bags_of(size_t table, std::vector<IdBags>& bags) const;
  // Find the distinct rows or keys of one table and replace its ids by indices of these.
  Request find_distinct_rows(size_t table, std::vector<IdBags>& bags) const;
  Request find_distinct_keys(size_t table, std::vector<IdBags>& bags) const;
  // Finds the rows of the keys that this rank serves. Collective if a table has keys.
  ScratchRows find_served_keys(Route& route, UnknownKeys unknown) const;
  // Whether unknown keys of the table look up another key.
  bool has_default_key(size_t table) const {
    return is_key_table(table) &&
        state_.tables[table].config->keys->default_key;
  }
  // The rank that owns the default key of the table.
  int64_t owner_of_default_key(size_t table) const;
  // Tells each rank which of its keys are unknown. Tells the owner of a default key how
  // often unknown keys look it up. Collective if a table has a default key.
  void exchange_unknown_keys(std::vector<Request>& requests, Route& route)
      const;
  // Adds to `words` what each rank must know about the unknown keys of a table.
  void write_unknown_keys(
      size_t table,
      const Route& route,
      std::vector<std::vector<uint32_t>>& words) const;
  // Reads what `rank` has written about one table. Returns the end of it.
  const uint32_t* read_unknown_keys(
      const uint32_t* words,
      size_t table,
      int64_t rank,
      Request& request,
      Route::ServedRows& served) const;
  // Removes the default keys that were requested, but do not occur, so that they are not
  // updated.
  void remove_unused_default_keys(Route& route) const;
  // The number of words that pack_requests() writes for each rank.
  std::vector<int64_t> count_words(const std::vector<Request>& requests) const;
  // Arrives at a lookup with the requests of this rank. Returns those of all ranks.
  // Errors:  on all ranks, the error of one rank, or c10::ValueError if too many rows are
  //          requested from one rank.
  std::vector<at::Tensor> exchange_requests(
      const std::vector<Request>& requests,
      const std::vector<int64_t>& words,
      const std::exception_ptr& error) const;
  at::Tensor pack_requests(
      const std::vector<Request>& requests,
      const std::vector<int64_t>& words) const;
  // Reads the requests of all ranks into `route`.
  void read_requests(const std::vector<at::Tensor>& incoming, Route& route)
      const;
  int64_t words_per_id(size_t table) const {
    return is_key_table(table) ? 3 : 1;
  }
  // Reads the requested ids of one table to rows.ids, or those of a key table to rows.keys,
  // from `begin` on. Returns false if this rank does not have them all.
  bool read_ids(
      size_t table,
      const uint32_t* words,
      int64_t count,
      int64_t begin,
      IdBags& rows) const;
  // Reads the request of one rank. `filled` counts the rows of each table so far.
  void read_request(
      int64_t rank,
      const uint32_t* counts,
      std::vector<int64_t>& filled,
      Route& route) const;
  // Sets the positions at which this rank's requested rows arrive.
  void assign_positions(std::vector<Request>& requests, Route& route) const;
  at::Tensor gather_served(size_t group, const Route& route) const;
  // Splits the served rows of a group into runs whose positions follow each other.
  std::vector<Run> find_runs(size_t group, const Route& route) const;
  // Copies the rows of one run to their positions in `out`.
  void copy_run(
      const Run& run,
      const Route& route,
      at::ScalarType dtype,
      char* out) const;
  // Replaces indices of distinct rows or keys by the positions of the fetched rows.
  void set_positions(
      const std::vector<Request>& requests,
      std::vector<IdBags>& bags) const;
  at::Tensor pack_gradients(
      size_t group,
      const Route& route,
      const std::vector<RowGradients>& sums) const;

  const EmbeddingState& state_;
  std::shared_ptr<RankGroup> ranks_;
  ShardingOptions options_;
  int64_t max_rows_;
  std::vector<Partition> partitions_;  // one per table
  std::vector<size_t> group_of_;  // one per table; kNoGroup: data-parallel
  std::vector<TableGroup> groups_;
  bool has_key_tables_ = false;
  bool has_default_keys_ = false;
  uint64_t lookups_ = 0;
};

}  // namespace tessera::distributed
