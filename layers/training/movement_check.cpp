// SPDX-License-Identifier: Apache-2.0
#include "layers/training/movement_check.h"

#include <tessera/common/shorten.h>
#include <tessera/layers/table_module.h>

#include "optim/row_update.h"
#include "src/engine/embedding_state.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace tessera::training {

namespace {

constexpr int64_t kMaxRows = 4096;
constexpr int64_t kUpdates = 100;
constexpr int64_t kMinTouchedRows = 16;
// Rows that have moved by less in 100 updates need 100,000 updates to move by their own
// length. This limit is for rows whose accumulators have hardly grown.
constexpr double kMinMovement = 1e-3;
constexpr double kMinGrowth = 0.01;
// The limit for other optimizers, whose users may want small steps: a million updates.
constexpr double kMinMovementOfOthers = 1e-4;

enum class RateState { kUnknown, kRising, kSteady };

// What the learning rate does after `step`. A schedule is read at later steps.
RateState state_of(const optim::LearningRate& rate, int64_t step) {
  if (!rate.is_constant() && rate.schedule() == nullptr) {
    return RateState::kUnknown;
  }
  const std::string where = "[fit]";
  const double now = rate.value(step, where);
  for (int64_t factor = 2; factor <= 128; factor *= 4) {
    if (rate.value(step * factor, where) > 2.0 * now) {
      return RateState::kRising;
    }
  }
  return now > 0.0 ? RateState::kSteady : RateState::kUnknown;
}

bool hardly_moves(const TableMovement& found) {
  if (found.touched_rows < kMinTouchedRows || !std::isfinite(found.movement)) {
    return false;
  }
  const bool is_at_start = found.accumulator_growth < kMinGrowth;
  return found.movement < (is_at_start ? kMinMovement : kMinMovementOfOthers);
}

void warn(const TableMovement& found, int64_t updates) {
  const bool is_at_start = found.accumulator_growth < kMinGrowth;
  TORCH_WARN(fmt::format(
      "[fit] the rows of table '{}' hardly move: after {} updates, half of {} "
      "touched rows have moved by less than {:.2g} % of their length. {} A "
      "mean loss over a batch gives each row a gradient about as small as 1 / "
      "batch. {}choose a larger learning rate, or take the sum of the loss. "
      "See docs/optimizers.md. FitOptions::movement_warning switches this "
      "warning off.",
      shorten(found.table),
      updates,
      found.touched_rows,
      100.0 * found.movement,
      is_at_start
          ? fmt::format(
                "Their accumulators have grown by {:.2g} % since their start, "
                "initial_accumulator_value, so the start alone sets the size "
                "of the steps.",
                100.0 * found.accumulator_growth)
          : std::string("The steps of its optimizer are tiny."),
      is_at_start ? "Set a smaller initial_accumulator_value, such as 1e-6, "
                  : "Use Adam or Adagrad, "));
}

}  // namespace

void MovementCheck::begin(const torch::nn::Module& model) {
  for (const auto& part : model.modules()) {
    const auto* tables = TableModule::of(*part);
    if (tables == nullptr || !tables->strategy().is_engine()) {
      continue;
    }
    tables->read_state([&](const EmbeddingState& state) {
      for (size_t i = 0; i < state.tables.size(); ++i) {
        const TableState& table = state.tables[i];
        if (state.iterations == 0 && table.config->trainable &&
            table.optimizer && table.dynamic == nullptr &&
            table.parameters.size(0) > 0) {
          tables_.push_back(
              {.layer = part,
               .table = i,
               .next_check = kUpdates,
               .rows = SampledRows(table, kMaxRows)});
        }
      }
    });
  }
}

void MovementCheck::check_tables() {
  std::erase_if(tables_, [](Watched& watched) {
    const TableModule& tables = *TableModule::of(*watched.layer);
    if (tables.iterations() < watched.next_check) {
      return false;  // read_state() would wait for lookups
    }
    bool is_checked = false;
    tables.read_state([&](const EmbeddingState& state) {
      is_checked = check_table(state, watched);
    });
    return is_checked;
  });
}

// Returns whether the table needs no further checks.
bool MovementCheck::check_table(const EmbeddingState& state, Watched& watched) {
  const TableState& table = state.tables[watched.table];
  // Accumulated passes are not updates.
  const int64_t updates = state.iterations /
      optim::gradient_accumulation_steps_of(*table.optimizer);
  if (updates < watched.next_check) {
    return false;
  }
  switch (
      state_of(optim::learning_rate_of(*table.optimizer), state.iterations)) {
    case RateState::kUnknown:
      return true;
    case RateState::kRising:
      watched.next_check = 2 * updates;
      return false;
    case RateState::kSteady:
      break;
  }
  const TableMovement found = watched.rows.compare(table);
  if (hardly_moves(found)) {
    warn(found, updates);
  }
  return true;
}

}  // namespace tessera::training
