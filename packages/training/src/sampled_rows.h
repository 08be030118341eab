// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/table_activity.h>

#include "src/tables/table_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace tessera::training {

/// Copies of rows of a table. A checkpoint may have them.
struct RowCopies {
  // Numbers in the whole table, or keys in the order of their hashes.
  at::Tensor ids = {};  // [rows] int64
  at::Tensor weights = {};  // [rows, dim] float32
  // [rows, dim] or [rows, 1] float32. Undefined: the optimizer has none.
  at::Tensor accumulators = {};
  /// For a key table: the copies have all keys up to this hash.
  uint64_t complete_to = std::numeric_limits<uint64_t>::max();
  int64_t max_rows = 0;
};

/// Copies of some rows of a table, which are compared with the same rows later.
///
/// A key table gets rows while it is trained. There, the keys with the lowest hashes
/// are compared, and a key that came later is compared with its initial value.
class SampledRows {
 public:
  /// Copies at most `max_rows` local rows, evenly spread over the table.
  SampledRows(const TableState& table, int64_t max_rows);
  /// Copies these local rows of a table without keys.
  SampledRows(const TableState& table, const std::vector<int64_t>& rows);
  /// Takes copies that were made earlier, perhaps on another rank. Rows that are not local
  /// are left out of comparisons.
  explicit SampledRows(RowCopies copies);

  const RowCopies& copies() const {
    return copies_;
  }
  /// Whether the copies can be those of the table.
  bool fits(const TableState& table) const;
  /// How far the rows have moved since the copies were made.
  TableMovement compare(const TableState& table) const;

 private:
  struct Matched;

  Matched match_numbers(const TableState& table) const;
  Matched match_keys(const TableState& table) const;

  RowCopies copies_;
};

/// The copies of several ranks. Each row counts once.
RowCopies merged(const std::vector<RowCopies>& parts);

}  // namespace tessera::training
