// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/row_sort.h"

#include <algorithm>
#include <array>

namespace tessera::kernels {

namespace {

// 2^8 counters and the data fit in the first-level cache.
constexpr int kDigitBits = 8;
constexpr uint32_t kDigits = 1U << kDigitBits;
constexpr int64_t kInsertionSortBelow = 32;

void insertion_sort(Contribution* contributions, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    const Contribution moved = contributions[i];
    int64_t j = i;
    for (; j > 0 && contributions[j - 1].row > moved.row; --j) {
      contributions[j] = contributions[j - 1];
    }
    contributions[j] = moved;
  }
}

}  // namespace

void sort_by_row(
    Contribution* contributions,
    Contribution* scratch,
    int64_t count,
    int first_bit,
    int end_bit) {
  if (count < kInsertionSortBelow) {
    insertion_sort(contributions, count);
    return;
  }
  Contribution* from = contributions;
  Contribution* to = scratch;
  for (int shift = first_bit; shift < end_bit; shift += kDigitBits) {
    std::array<int64_t, kDigits> next = {};
    for (int64_t i = 0; i < count; ++i) {
      ++next[(from[i].row >> shift) % kDigits];
    }
    if (next[(from[0].row >> shift) % kDigits] == count) {
      continue;  // All rows share this digit.
    }
    int64_t begin = 0;
    for (int64_t& position : next) {
      begin += position;
      position = begin - position;
    }
    for (int64_t i = 0; i < count; ++i) {
      to[next[(from[i].row >> shift) % kDigits]++] = from[i];
    }
    std::swap(from, to);
  }
  if (from != contributions) {
    std::copy(from, from + count, contributions);
  }
}

}  // namespace tessera::kernels
