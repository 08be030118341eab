// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/storage.h"

#include <algorithm>
#include <cstdint>

namespace tessera {

/// The rows of one table that this process holds, in order.
struct LocalRows {
  kernels::RowNumbers numbers = {};  // their numbers in the table
  int64_t count = 0;
  /// Whether every rank holds them.
  bool is_data_parallel = false;
  /// Whether they are copies of the rows of another rank. Where each row counts once, as
  /// in a checkpoint, only the other rank's rows count.
  bool is_copy = false;

  /// The number of these rows whose number in the table is below `row`.
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
