// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// A row of `dim` numbers in 8 or 4 bits each. Number i is
///
///   offset + scale * code[i]      code[i] in 0 .. 2^bits - 1
///
/// The two floats are at the beginning. With 4 bits, byte j has code 2j in its lower half
/// and code 2j + 1 in its upper half. So one read of memory gets a whole row.
struct QuantizedRow {
  float scale = 0.0F;
  float offset = 0.0F;

  /// The bytes of a row. Rows begin at multiples of 8 bytes.
  static constexpr int64_t bytes(int64_t dim, int bits) {
    constexpr int64_t kAlignment = 8;
    const int64_t codes = (dim * bits + 7) / 8;
    return static_cast<int64_t>(sizeof(QuantizedRow)) +
        (codes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

/// Kernels may read this many bytes after a quantized row, but do not use them.
inline constexpr int64_t kReadAfterRow = 64;

/// Quantizes `values` [dim]. Code 0 stands for the smallest value and the largest code for
/// the largest value. Others are rounded to the nearest code, so each changes by at most
/// scale / 2 and a rounding error of float32. If all values are equal, they are exact. `row`
/// has QuantizedRow::bytes(dim, bits) bytes. Returns false if a value is not finite, or if
/// the difference of the largest and the smallest value is not.
bool quantize_row(const float* values, int64_t dim, int bits, void* row);

}  // namespace tessera::kernels
