// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/buffer.h"
#include "src/features/id_bags.h"

#include <cstdint>
#include <vector>

namespace tessera::distributed {

/// Where the rows of one lookup came from, and which ones other ranks took here:
/// gradients go the same way back.
///
/// Tables whose rows travel as one tensor [rows, dim] are a group. In it, rows
/// are ordered by rank, then by table; positions number them.
struct Route {
  struct Group {
    std::vector<int64_t> wanted = {};  // rows that come from each rank
    std::vector<int64_t> asked = {};  // rows that go to each rank
    int64_t wanted_count = 0;
    int64_t asked_count = 0;
  };
  /// Rows of one table that other ranks, and this one, have asked for.
  struct Asked {
    IdBags rows = {};  // local rows, one per bag, by rank
    Buffer<uint32_t> positions = {};  // of each, in its group
  };

  uint64_t number = 0;  // of the lookup: 1, 2, ...
  std::vector<Group> groups = {};
  std::vector<Asked> asked = {};  // one per table
};

}  // namespace tessera::distributed
