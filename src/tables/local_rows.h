// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/storage.h"

#include <algorithm>
#include <cstdint>

namespace tessera {

/// The rows of one table that this process holds, in order.
struct LocalRows {
  kernels::RowNumbers numbers = {};  // in the table
  int64_t count = 0;
  /// Whether every rank holds them.
  bool is_data_parallel = false;
  /// Whether another rank answers for them, where each row counts once.
  bool is_copy = false;

  /// How many of them come before `row` of the table.
  int64_t count_before(int64_t row) const {
    const int64_t before =
        (row - numbers.first + numbers.step - 1) / numbers.step;
    return row <= numbers.first ? 0 : std::min(before, count);
  }

  static LocalRows all(int64_t vocabulary_size) {
    return {.count = vocabulary_size};
  }
};

}  // namespace tessera
