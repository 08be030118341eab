// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/buffer.h"

#include <cstdint>
#include <vector>

namespace tessera {

struct TableState;

/// Finds the rows of a table that have changed since the last checkpoint, no matter which
/// code has written them. It keeps one XXH3 checksum per local row, over its weights and
/// slots. Marks by updates would miss what other code writes. The version counters of
/// LibTorch's tensors would miss what torch::optim writes, because it writes through
/// .data(), which has another counter. On two cores, a table of 1 GiB with rows of 64
/// floats takes 0.17 s to compare and 4.3 s to write.
class TouchedRows {
 public:
  /// A row counts as touched if it differs from its values at this time.
  explicit TouchedRows(const TableState& table);

  /// Returns the touched rows, ascending. Reads the whole table, on all threads.
  std::vector<uint32_t> rows(const TableState& table) const;

  /// Call this after a checkpoint has saved `rows`, the result of rows(). These rows no
  /// longer count as touched.
  void accept(const TableState& table, const std::vector<uint32_t>& rows);

 private:
  // A vector would first be filled with zeros, by one thread.
  Buffer<uint64_t> checksums_;  // [local rows]
};

}  // namespace tessera
