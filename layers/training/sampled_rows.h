// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/table_activity.h>

#include "src/tables/table_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::training {

/// Copies of some rows of a table, which are compared with the same rows later.
class SampledRows {
 public:
  /// Copies at most `max_rows` local rows, evenly spread over the table.
  SampledRows(const TableState& table, int64_t max_rows);

  /// How far the rows have moved since the constructor.
  TableMovement compare(const TableState& table) const;

 private:
  at::Tensor rows_;  // [sampled] int64
  at::Tensor weights_;  // [sampled, dim] float32
  // [sampled, dim] or [sampled, 1] float32. Undefined: the optimizer has none.
  at::Tensor accumulators_;
};

}  // namespace tessera::training
