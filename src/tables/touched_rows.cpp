// SPDX-License-Identifier: Apache-2.0
#include "src/tables/touched_rows.h"

#include "src/common/parallel.h"
#include "src/tables/table_state.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

namespace tessera {

namespace {

constexpr int64_t kBytesPerTask = int64_t{1} << 22;

// Computes the checksums of a table's rows, over their weights and slots.
class RowReader {
 public:
  explicit RowReader(const TableState& table) : rows_(table.rows.count) {
    add(table.parameters);
    for (const Slot& slot : table.slots) {
      add(slot.values);
    }
  }

  uint64_t checksum(int64_t row) const {
    uint64_t checksum = 0;
    for (const Column& column : columns_) {
      checksum = XXH3_64bits_withSeed(
          column.data + row * column.row_bytes, column.row_bytes, checksum);
    }
    return checksum;
  }

  int64_t row_bytes() const {
    return bytes_;
  }
  int64_t rows_per_task() const {
    return std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(1, bytes_));
  }
  int64_t tasks() const {
    return (rows_ + rows_per_task() - 1) / rows_per_task();
  }

  // Calls visit(task, begin, end) for ranges of rows, in parallel.
  template <class Visit>
  void visit_ranges(Visit visit) const {
    run_tasks(tasks(), rows_ * bytes_, [&](int64_t task) {
      const int64_t begin = task * rows_per_task();
      visit(task, begin, std::min(rows_, begin + rows_per_task()));
    });
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

}  // namespace

TouchedRows::TouchedRows(const TableState& table)
    : checksums_(table.rows.count) {
  const RowReader reader(table);
  reader.visit_ranges([&](int64_t /*task*/, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      checksums_[row] = reader.checksum(row);
    }
  });
}

std::vector<uint32_t> TouchedRows::rows(const TableState& table) const {
  const RowReader reader(table);
  std::vector<std::vector<uint32_t>> found(reader.tasks());
  reader.visit_ranges([&](int64_t task, int64_t begin, int64_t end) {
    std::vector<uint32_t> touched;
    for (int64_t row = begin; row < end; ++row) {
      if (reader.checksum(row) != checksums_[row]) {
        touched.push_back(static_cast<uint32_t>(row));
      }
    }
    found[task] = std::move(touched);
  });
  std::vector<uint32_t> rows;
  for (const std::vector<uint32_t>& part : found) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

void TouchedRows::accept(
    const TableState& table,
    const std::vector<uint32_t>& rows) {
  const RowReader reader(table);
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t step = reader.rows_per_task();
  run_tasks(
      (count + step - 1) / step, count * reader.row_bytes(), [&](int64_t task) {
        const int64_t end = std::min(count, (task + 1) * step);
        for (int64_t i = task * step; i < end; ++i) {
          checksums_[rows[i]] = reader.checksum(rows[i]);
        }
      });
}

}  // namespace tessera
