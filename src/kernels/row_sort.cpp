// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/row_sort.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace tessera::kernels {

namespace {

// The 2^11 counters of 32 bits take 8 KiB of the first-level cache. With wider digits, a
// row has fewer digits. But all counters are cleared and summed for each digit, so a small
// number of contributions is sorted by narrower digits.
constexpr int kMaxDigitBits = 11;
constexpr int64_t kInsertionSortBelow = 32;

// The number of digits by which `count` contributions are sorted by `bits` bits.
int digits_for(int bits, int64_t count) {
  const int widest = std::clamp(
      static_cast<int>(std::bit_width(static_cast<uint64_t>(count))),
      4,
      kMaxDigitBits);
  return (bits + widest - 1) / widest;
}

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

// Sorts by some bits of the row. Returns the array that has the result.
Contribution* sort_by_bits(
    Contribution* from,
    Contribution* to,
    int64_t count,
    RowBits key) {
  if (key.begin == key.end) {
    return from;
  }
  std::array<uint32_t, size_t{1} << kMaxDigitBits> next;
  const int digits = digits_for(key.end - key.begin, count);
  const int bits = (key.end - key.begin + digits - 1) / digits;
  const uint32_t mask = (1U << bits) - 1;
  for (int shift = key.begin; shift < key.end; shift += bits) {
    const auto digit_of = [&](const Contribution& contribution) {
      return (contribution.row >> shift) & mask;
    };
    std::fill_n(next.begin(), mask + 1, 0);
    for (int64_t i = 0; i < count; ++i) {
      ++next[digit_of(from[i])];
    }
    if (next[digit_of(from[0])] == count) {
      continue;  // All rows share this digit.
    }
    uint32_t begin = 0;
    for (uint32_t digit = 0; digit <= mask; ++digit) {
      begin += next[digit];
      next[digit] = begin - next[digit];
    }
    for (int64_t i = 0; i < count; ++i) {
      to[next[digit_of(from[i])]++] = from[i];
    }
    std::swap(from, to);
  }
  return from;
}

}  // namespace

Contribution* sort_by_row(
    Contribution* contributions,
    Contribution* scratch,
    int64_t count,
    int row_bits,
    RowBits equal) {
  if (count < kInsertionSortBelow) {
    insertion_sort(contributions, count);
    return contributions;
  }
  const int digits_around_equal =
      digits_for(equal.begin, count) + digits_for(row_bits - equal.end, count);
  if (digits_for(row_bits, count) < digits_around_equal) {
    return sort_by_bits(contributions, scratch, count, {0, row_bits});
  }
  Contribution* const sorted =
      sort_by_bits(contributions, scratch, count, {0, equal.begin});
  Contribution* const other = sorted == contributions ? scratch : contributions;
  return sort_by_bits(sorted, other, count, {equal.end, row_bits});
}

}  // namespace tessera::kernels
