// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/kernels.h"

#include <cstdint>

namespace tessera::kernels {

/// Sorts by bits [first_bit, end_bit) of the row. The sort is a stable radix sort. Returns
/// the array that has the result, `contributions` or `scratch`. The other one has no use
/// any more.
///
/// Shapes:  contributions, scratch [count].
/// Range:   all rows have the same other bits.
[[nodiscard]] Contribution* sort_by_row(
    Contribution* contributions,
    Contribution* scratch,
    int64_t count,
    int first_bit,
    int end_bit);

}  // namespace tessera::kernels
