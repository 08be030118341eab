// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

/// Consecutive examples of shared columns, whose tensors are contiguous.
struct RowRange {
  std::shared_ptr<Columns> columns = {};
  int64_t first = 0;
  int64_t count = 0;
  /// True if nobody else uses the columns and their tensors. They may then be given away.
  bool is_owned = false;

  bool is_whole() const {
    return first == 0 && count == columns->batch_size();
  }
};

/// A range over columns that nobody else uses.
RowRange owned_range(Columns columns);

/// Returns `count` rows of the range, from its row `first` on.
RowRange part_of(const RowRange& range, int64_t first, int64_t count);

/// The same columns with contiguous tensors that have no gradient.
Columns contiguous(Columns columns);

/// Copies the rows of all ranges, one after the other. There is at least one range, and
/// they must have the same columns.
Columns copy_rows(std::span<const RowRange> ranges);

/// The rows as columns that the caller may change.
Columns take_rows(RowRange range);

/// Copies the rows with these numbers, counted from the range's first row.
Columns gather_rows(const RowRange& range, std::span<const int64_t> rows);

/// The memory of the values and row_splits in a range.
int64_t bytes_of(const RowRange& range);

/// The names and kinds of columns.
class ColumnKinds {
 public:
  ColumnKinds() = default;
  explicit ColumnKinds(const Columns& columns);

  /// Remembers the columns of the first call. Later calls must pass the same columns.
  /// Errors:  c10::ValueError beginning with `where`.
  void check(const Columns& columns, const std::string& where);

 private:
  std::vector<std::string> kinds_;
};

}  // namespace tessera::data
