// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/table_movement.h>

#include "src/engine/embedding_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// The summary of a layer and fit() warn about tables that do not learn. Both read at most
// kMaxSampledRows rows of a table. They warn after at least kMinUpdates updates, and only
// if at least kMinTouchedRows of the rows are touched.
constexpr int64_t kMaxSampledRows = 4096;
constexpr int64_t kMinUpdates = 100;
constexpr int64_t kMinTouchedRows = 16;

/// Whether the accumulators of most touched rows are about as large as at their start.
bool has_hardly_grown(const TableMovement& found);

/// The value at which the accumulators of the table's optimizer start. 0 if it has none,
/// or if the user's own function makes them.
double initial_accumulator_of(const TableState& table);

/// Copies of rows of a table. A checkpoint may have them.
struct RowCopies {
  std::string table = {};
  // Numbers in the whole table, or keys in the order of their hashes.
  at::Tensor ids = {};  // [rows] int64
  at::Tensor weights = {};  // [rows, dim] float32
  // [rows, dim] or [rows, 1] float32, or [rows, 0] if the optimizer has none.
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
  explicit SampledRows(
      const TableState& table,
      int64_t max_rows = kMaxSampledRows);
  /// Copies these local rows of a table without keys.
  SampledRows(const TableState& table, const std::vector<int64_t>& rows);
  /// Takes copies that were made earlier, perhaps on another rank. Rows that are not local
  /// are left out of comparisons.
  explicit SampledRows(RowCopies copies) : copies_(std::move(copies)) {}

  const RowCopies& copies() const {
    return copies_;
  }
  /// Whether the copies can be those of the table.
  bool fits(const TableState& table) const {
    return copies_.weights.size(1) == table.config->dim;
  }
  /// How far the rows have moved since the copies were made.
  TableMovement compare(const TableState& table) const;

 private:
  std::pair<std::vector<int64_t>, RowCopies> match(
      const TableState& table) const;

  RowCopies copies_;
};

/// The copies of several ranks. Each row counts once.
RowCopies merged(const std::vector<RowCopies>& parts);

}  // namespace tessera
