// SPDX-License-Identifier: Apache-2.0
#include "src/tables/touched_rows.h"

#include "src/tables/row_checksums.h"

#include <iterator>
#include <utility>

namespace tessera {

TouchedRows::TouchedRows(const TableState& table)
    : checksums_(table.rows.count) {
  const RowChecksums reader(table);
  reader.for_ranges(table.rows.count, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      checksums_[row] = reader.checksum(row);
    }
  });
}

std::vector<uint32_t> TouchedRows::rows(const TableState& table) const {
  const RowChecksums reader(table);
  const int64_t size = reader.rows_per_task();
  std::vector<std::vector<uint32_t>> found(
      (table.rows.count + size - 1) / size);
  reader.for_ranges(table.rows.count, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> touched;
    for (int64_t row = begin; row < end; ++row) {
      if (reader.checksum(row) != checksums_[row]) {
        touched.push_back(static_cast<uint32_t>(row));
      }
    }
    found[begin / size] = std::move(touched);
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
  const RowChecksums reader(table);
  reader.for_ranges(std::ssize(rows), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      checksums_[rows[i]] = reader.checksum(rows[i]);
    }
  });
}

}  // namespace tessera
