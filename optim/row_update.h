// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizer.h>
#include <tessera/optim/slot_creation.h>

#include "src/kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::optim {

/// A tensor beside the table that a spec keeps.
struct SlotSpec {
  /// Upstream's name: "accumulators", "momenta", ...
  std::string name = {};
  double initial_value = 0.0;
  /// Where the kernel expects it: its index in UpdateArgs::slots.
  size_t position = 0;
  /// [vocab] instead of [vocab, dim].
  bool is_per_row = false;
};

/// A slot's key in an archive: a tensor named `class` saves and can't be
/// loaded.
inline std::string slot_key(const std::string& name) {
  return "slot_" + name;
}

/// Slots in the order in which they are created and saved.
std::vector<SlotSpec> slots_of(const OptimizerSpec& optimizer);

const SlotCreation& slot_creation_of(const OptimizerSpec& optimizer);

/// When an update happens.
struct UpdateMoment {
  /// As read for this update.
  double learning_rate = 0.0;
  /// 1, 2, ...: which update of the table this is.
  int64_t update = 1;
};

/// One update of a table's rows by a kernel, with this step's learning rate
/// folded in.
struct RowUpdate {
  kernels::RowRule rule = {};
  kernels::RowStages stages = {};
  bool accumulate = true;
  bool sweep = false;
};

/// Custom rules have none: optim/tensor_update.h runs them.
RowUpdate row_update(
    const OptimizerSpec& optimizer,
    const UpdateMoment& moment);

/// use_gradient_accumulation.
bool accumulates_duplicates(const OptimizerSpec& optimizer);

int64_t gradient_accumulation_steps_of(const OptimizerSpec& optimizer);

const LearningRate& learning_rate_of(const OptimizerSpec& optimizer);

}  // namespace tessera::optim
