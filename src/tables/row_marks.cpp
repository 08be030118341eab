// SPDX-License-Identifier: Apache-2.0
#include "src/tables/row_marks.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera {

RowMarks::RowMarks(int64_t rows, const std::string& what)
    : count_(rows),
      rows_(rows, what),
      blocks_(static_cast<size_t>((rows + kRowsPerBlock - 1) / kRowsPerBlock)) {
}

void RowMarks::mark(int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    mark(static_cast<uint32_t>(row));
  }
}

RowMarks::Taken RowMarks::take() {
  Taken taken{.are_all = std::exchange(are_replaced_, false)};
  for (size_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_[block] == 0) {
      continue;
    }
    blocks_[block] = 0;
    const int64_t begin = static_cast<int64_t>(block) * kRowsPerBlock;
    const int64_t end = std::min(count_, begin + kRowsPerBlock);
    for (int64_t row = begin; row < end; row += 8) {
      // Eight marks at a time, because most are not set.
      uint64_t marks = 0;
      const int64_t size = std::min<int64_t>(8, end - row);
      std::memcpy(&marks, rows_.data() + row, static_cast<size_t>(size));
      for (int64_t i = 0; marks != 0 && i < size; ++i) {
        if (rows_[row + i] != 0 && !taken.are_all) {
          taken.rows.push_back(static_cast<uint32_t>(row + i));
        }
      }
    }
    std::fill_n(rows_.data() + begin, end - begin, uint8_t{0});
  }
  return taken;
}

}  // namespace tessera
