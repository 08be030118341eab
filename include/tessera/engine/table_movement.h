// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace tessera {

/// How far the rows of a table have moved, measured on a sample of rows.
struct TableMovement {
  std::string table = {};
  int64_t sampled_rows = 0;
  /// The sampled rows whose weights or accumulators have changed.
  int64_t touched_rows = 0;
  /// The sampled rows whose weights have changed.
  int64_t moved_rows = 0;
  /// The median over the touched rows of |row - start| / |start|. Infinite if most rows
  /// started at zero, and NaN if no row was touched.
  double movement = std::numeric_limits<double>::quiet_NaN();
  /// The median over the touched rows of accumulator / start - 1. NaN for optimizers
  /// without accumulators.
  double accumulator_growth = std::numeric_limits<double>::quiet_NaN();
};
static_assert(std::is_aggregate_v<TableMovement>);

}  // namespace tessera
