// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

struct TableState;

/// Finds the rows of a table that have changed since the last checkpoint, whatever has
/// written them. It keeps one XXH3 checksum per local row, over its weights and slots.
class TouchedRows {
 public:
  /// From now on, rows count as touched if they differ from their current values.
  explicit TouchedRows(const TableState& table);

  /// The touched rows, ascending. Reads the whole table, on all threads.
  std::vector<uint32_t> rows(const TableState& table) const;

  /// Call this after a checkpoint that has saved `rows`, which are all touched rows.
  void accept(const TableState& table, const std::vector<uint32_t>& rows);

 private:
  std::vector<uint64_t> checksums_;  // [local rows]
};

}  // namespace tessera
