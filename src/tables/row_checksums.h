// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/parallel.h"
#include "src/tables/table_state.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera {

/// Computes the XXH3 checksums of a table's rows, over their weights and slots.
class RowChecksums {
 public:
  explicit RowChecksums(const TableState& table) : rows_(table.rows.count) {
    add(table.parameters);
    for (const Slot& slot : table.slots) {
      add(slot.values);
    }
  }

  /// `seed` stands for other values that belong to the row.
  uint64_t checksum(int64_t row, uint64_t seed = 0) const {
    uint64_t checksum = seed;
    for (const Column& column : columns_) {
      checksum = XXH3_64bits_withSeed(
          column.data + row * column.row_bytes, column.row_bytes, checksum);
    }
    return checksum;
  }

  int64_t row_bytes() const {
    return bytes_;
  }
  /// Calls visit(begin, end) for ranges that cover [0, count), in parallel.
  template <class Visit>
  void for_ranges(int64_t count, const Visit& visit) const {
    run_ranges(count, rows_per_task(), count * bytes_, visit);
  }
  int64_t rows_per_task() const {
    constexpr int64_t kBytesPerTask = int64_t{1} << 22;
    return std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(1, bytes_));
  }

 private:
  struct Column {
    const char* data = nullptr;
    int64_t row_bytes = 0;
  };

  void add(const at::Tensor& values) {
    const int64_t row_bytes =
        rows_ == 0 ? 0 : static_cast<int64_t>(values.nbytes()) / rows_;
    columns_.push_back(
        {static_cast<const char*>(values.const_data_ptr()), row_bytes});
    bytes_ += row_bytes;
  }

  int64_t rows_ = 0;
  int64_t bytes_ = 0;  // bytes of one row
  std::vector<Column> columns_;
};

}  // namespace tessera
