// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera::test {

// Rows that tell which version they are of. A publisher begins with the step `first`, at
// which it writes all rows. Each later step writes one row of 16. A row has the step at
// which it was written, its number, and numbers that follow from both.
struct StampedRows {
  static constexpr int64_t kRows = 20'000;
  static constexpr int64_t kDim = 16;

  static uint32_t mix(int64_t row, int64_t step) {
    uint64_t bits =
        (static_cast<uint64_t>(row) << 32) ^ static_cast<uint64_t>(step);
    bits = (bits ^ (bits >> 31)) * 0x9E3779B97F4A7C15ULL;
    return static_cast<uint32_t>(bits >> 40);
  }
  static bool writes(int64_t row, int64_t step) {
    return mix(row, step) % 16 == 0;
  }
  static void fill(int64_t row, int64_t step, float* values) {
    values[0] = static_cast<float>(step);
    values[1] = static_cast<float>(row);
    for (int64_t i = 2; i < kDim; ++i) {
      values[i] = static_cast<float>(mix(row * kDim + i, step));
    }
  }
  /// The step at which the row was written last, in the version of `step`.
  static int64_t written_at(int64_t row, int64_t first, int64_t step) {
    int64_t at = step;
    while (at > first && !writes(row, at)) {
      --at;
    }
    return at;
  }
};

}  // namespace tessera::test
