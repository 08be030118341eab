// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/table_movement.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>

namespace tessera {

struct TableState;
struct TableUpdate;

// The summary of a layer and fit() warn about tables that do not learn. They warn after at
// least kMinUpdates updates, and only if at least kMinTouchedRows of the rows are touched.
constexpr int64_t kMaxSampledRows = 4096;
constexpr int64_t kMinUpdates = 100;
constexpr int64_t kMinTouchedRows = 16;

/// Copies of some rows of a table, which are compared with the same rows later. A
/// checkpoint may have them. Rows that are not local are left out of comparisons.
///
/// A key table gets rows while it is trained. There, the keys with the lowest hashes
/// are compared, and a key that came later is compared with its initial value.
struct SampledRows {
  std::string table = {};
  // Numbers in the whole table, or keys in the order of their hashes.
  at::Tensor ids = {};  // [rows] int64
  at::Tensor weights = {};  // [rows, dim] float32
  // [rows, dim] or [rows, 1] float32, or [rows, 0] if the optimizer has none.
  at::Tensor accumulators = {};
  /// For a key table: the copies have all keys up to this hash.
  uint64_t complete_to = std::numeric_limits<uint64_t>::max();
  int64_t max_rows = kMaxSampledRows;
  int64_t updates = 0;  // read by add_rows_with_gradient()
};

/// Copies at most `max_rows` local rows, evenly spread over the table.
SampledRows sample_rows(
    const TableState& table,
    int64_t max_rows = kMaxSampledRows);

/// SampledRows of a table without keys, to which add_rows_with_gradient() adds rows.
SampledRows no_rows(const TableState& table);

/// Adds copies of rows that get a gradient other than zero in `update`, with their values
/// before the update. The table has no keys. Does nothing once there are max_rows rows,
/// or after kMinUpdates updates. An update must not fail because of this function. So if
/// there is no memory, no rows are added.
void add_rows_with_gradient(
    const TableUpdate& update,
    SampledRows& rows) noexcept;

/// Joins copies of one table, perhaps from two ranks. For a row in both, `first` counts.
SampledRows joined(const SampledRows& first, const SampledRows& second);

/// How far the rows have moved since the copies were made.
TableMovement compare(const SampledRows& start, const TableState& table);

/// Whether the accumulators of most touched rows are about as large as at their start.
bool has_hardly_grown(const TableMovement& found);

/// The value at which the accumulators of the table's optimizer start. 0 if it has none,
/// or if the user's own function makes them.
double initial_accumulator_of(const TableState& table);

}  // namespace tessera
