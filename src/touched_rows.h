// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

struct TableState;

/// Which rows of a table have changed since the last checkpoint.
///
/// Updates mark rows. Whatever else writes into the table's tensors does it by
/// LibTorch's operators, whose version counters show that it happened, but not
/// where: then all rows count as touched.
class TouchedRows {
 public:
  explicit TouchedRows(const TableState& table);

  /// Before an update of the table: notices what others have written.
  void notice_writes(const TableState& table);
  /// What an update writes.
  void mark(const uint32_t* rows, int64_t count);
  void mark_all();
  /// After an update.
  void note_version(const TableState& table);

  bool is_all() const {
    return is_all_;
  }
  /// Ascending. Not when is_all().
  std::vector<uint32_t> rows() const;

 private:
  std::vector<uint64_t> bits_;  // [vocab / 64]
  bool is_all_ = false;
  int64_t version_ = 0;
};

}  // namespace tessera
