// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

struct TableState;

/// Which rows of a table have changed since the last checkpoint: those whose
/// checksum is another one now, whoever wrote them. One checksum, XXH3, per
/// local row covers its weights and slots.
class TouchedRows {
 public:
  /// Rows count as touched when they differ from what they are now.
  explicit TouchedRows(const TableState& table);

  /// Ascending. Reads the whole table, on all threads.
  std::vector<uint32_t> rows(const TableState& table) const;

  /// After a checkpoint: `rows`, and no others, have changed and are saved.
  void accept(const TableState& table, const std::vector<uint32_t>& rows);

 private:
  std::vector<uint64_t> checksums_;  // [local rows]
};

}  // namespace tessera
