// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/kernels.h"

#include <cstdint>

namespace tessera::kernels {

/// Bits [begin, end) of a row.
struct RowBits {
  int begin = 0;
  int end = 0;
};

/// Sorts by the lowest `row_bits` bits of the row, without the `equal` ones. The sort is a
/// stable radix sort. Returns the array that has the result, `contributions` or `scratch`.
/// The contents of the other one are unspecified.
///
/// Shapes:  contributions, scratch [count].
/// Range:   all rows have the same `equal` bits, and the same bits from `row_bits` on.
///          equal.end <= row_bits <= 32.
[[nodiscard]] Contribution* sort_by_row(
    Contribution* contributions,
    Contribution* scratch,
    int64_t count,
    int row_bits,
    RowBits equal = {});

}  // namespace tessera::kernels
