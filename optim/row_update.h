// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizer.h>

#include "src/kernels/kernels.h"

#include <string>
#include <vector>

namespace tessera::optim {

/// A tensor beside the table, of the same shape.
struct SlotSpec {
  /// Upstream's name: "accumulators", "momenta", ...
  std::string name = {};
  double initial_value = 0.0;
};

/// Slots in the order in which the rule takes them.
std::vector<SlotSpec> slots_of(const OptimizerSpec& optimizer);

/// One update of a table's rows, with this step's learning rate folded in.
struct RowUpdate {
  kernels::RowRule rule = {};
  kernels::RowStages stages = {};
  bool accumulate = true;
};

/// Shapes:  learning_rate as read for this update.
RowUpdate row_update(const OptimizerSpec& optimizer, double learning_rate);

const LearningRate& learning_rate_of(const OptimizerSpec& optimizer);

}  // namespace tessera::optim
