// SPDX-License-Identifier: Apache-2.0
#include "src/tables/row_marks.h"

#include <algorithm>
#include <cstring>

namespace tessera {

namespace {

// Calls visit(i) for each mark that is set, in ascending order. It reads eight marks at a
// time, because most are not set.
template <class Visit>
void visit_marks(const uint8_t* marks, int64_t count, Visit visit) {
  constexpr int64_t kBytes = sizeof(uint64_t);
  for (int64_t begin = 0; begin < count; begin += kBytes) {
    const int64_t size = std::min(kBytes, count - begin);
    uint64_t any = 0;
    std::memcpy(&any, marks + begin, static_cast<size_t>(size));
    for (int64_t i = begin; any != 0 && i < begin + size; ++i) {
      if (marks[i] != 0) {
        visit(i);
      }
    }
  }
}

}  // namespace

RowMarks::RowMarks(int64_t rows, const std::string& what)
    : count_(rows),
      rows_(rows, what),
      blocks_(static_cast<size_t>((rows + kRowsPerBlock - 1) / kRowsPerBlock)) {
}

std::vector<uint32_t> RowMarks::take() {
  std::vector<uint32_t> taken;
  visit_marks(blocks_.data(), std::ssize(blocks_), [&](int64_t block) {
    blocks_[block] = 0;
    const int64_t begin = block * kRowsPerBlock;
    const int64_t size = std::min(count_ - begin, kRowsPerBlock);
    uint8_t* marks = rows_.data() + begin;
    visit_marks(marks, size, [&](int64_t row) {
      taken.push_back(static_cast<uint32_t>(begin + row));
    });
    std::fill_n(marks, size, uint8_t{0});
  });
  return taken;
}

}  // namespace tessera
