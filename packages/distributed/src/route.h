// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/buffer.h"
#include "src/engine/table_store.h"
#include "src/features/id_bags.h"

#include <cstdint>
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

}  // namespace tessera::distributed
