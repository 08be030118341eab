// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizer.h>
#include <tessera/optim/slot_creation.h>

#include "src/kernels/kernels.h"

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::optim {

/// A slot: a tensor that a spec keeps for each table.
struct SlotSpec {
  /// Upstream's name: "accumulators", "momenta", ...
  std::string name = {};
  double initial_value = 0.0;
  /// The slot's index in kernels::UpdateArgs::slots.
  size_t position = 0;
  /// Whether the shape is [vocab] instead of [vocab, dim].
  bool is_per_row = false;
  /// The name of the slot that files of older versions have instead of this slot.
  /// convert_earlier_slots() converts the values of that slot. Empty: there is no such
  /// slot.
  std::string earlier_name = {};
};

/// A slot's key in an archive. It has a prefix, because LibTorch saves a tensor with a
/// name such as `class`, but can't load it.
inline std::string slot_key(const std::string& name) {
  return "slot_" + name;
}

/// The slots in the order in which they are created and saved.
std::vector<SlotSpec> slots_of(const OptimizerSpec& optimizer);

const SlotCreation& slot_creation_of(const OptimizerSpec& optimizer);

/// The number of an update and its learning rate.
struct StepContext {
  double learning_rate = 0.0;
  /// The number of this update of the table: 1, 2, ...
  int64_t update = 1;
};

/// What a kernel needs for one update of a table's rows. It includes the learning rate.
struct RowUpdate {
  kernels::RowRule rule = {};
  kernels::RowStages stages = {};
  bool accumulate = true;
  bool sweep = false;
};

/// Returns what a kernel needs for an update by `optimizer`, which must not be a
/// CustomOptimizer: update_rows() of optim/tensor_update.h runs custom rules.
RowUpdate row_update(
    const OptimizerSpec& optimizer,
    const StepContext& context);

/// The option use_gradient_accumulation.
bool accumulates_duplicates(const OptimizerSpec& optimizer);

int64_t gradient_accumulation_steps_of(const OptimizerSpec& optimizer);

const LearningRate& learning_rate_of(const OptimizerSpec& optimizer);

/// Reads learning rates for one update. The rates of one tag are evaluated only once.
class LearningRateReader {
 public:
  /// `tags` is the result of learning_rate_tags(); `step` is 0, 1, ....
  LearningRateReader(std::vector<int64_t> tags, int64_t step)
      : tags_(std::move(tags)), step_(step), learning_rates_(tags_.size()) {}

  /// The rate of entry `index` of the tags. `source` is the learning rate of that entry.
  /// `where` returns the beginning of an error message.
  /// Errors:  as LearningRate::value().
  double read(
      size_t index,
      const LearningRate& source,
      c10::function_ref<std::string()> where) {
    std::optional<double>& learning_rate = learning_rates_[tags_[index]];
    if (!learning_rate) {
      learning_rate = source.value(step_, where());
    }
    return *learning_rate;
  }

 private:
  std::vector<int64_t> tags_;
  int64_t step_;
  std::vector<std::optional<double>> learning_rates_;  // by tag
};

}  // namespace tessera::optim
