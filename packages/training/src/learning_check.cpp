// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/learning_check.h"

#include <tessera/common/shorten.h>
#include <tessera/engine/embedding_engine.h>
#include <tessera/engine/table_module.h>

#include "optim/row_update.h"
#include "src/engine/embedding_state.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::training {

namespace {

// Rows that have moved by less than this in 100 updates need more than 100,000 updates to
// move by their own length. This limit is for rows whose accumulators have hardly grown.
constexpr double kMinMovement = 1e-3;
// The limit for all other rows means a million updates. Users may want such small steps.
constexpr double kMinMovementOfOthers = 1e-4;

enum class RateState { kUnknown, kRising, kSteady };

// What the learning rate does after `step`. A schedule is read at later steps.
RateState state_of(const optim::LearningRate& rate, int64_t step) {
  if (!rate.is_constant() && rate.schedule() == nullptr) {
    return RateState::kUnknown;
  }
  const std::string where = "[fit]";
  const double now = rate.value(step, where);
  try {
    for (int64_t factor = 2; factor <= 128; factor *= 4) {
      if (rate.value(step * factor, where) > 2.0 * now) {
        return RateState::kRising;
      }
    }
  } catch (const c10::Error&) {
    // The schedule, such as CosineDecayRestarts with t_mul < 1, ends before that step.
  }
  return now > 0.0 ? RateState::kSteady : RateState::kUnknown;
}

void warn(
    const TableMovement& found,
    int64_t updates,
    const std::string& rest,
    const std::string& cause,
    const std::string& advice) {
  TORCH_WARN(fmt::format(
      "[fit] the rows of table '{}' {} move: after {} updates, {}. {} A mean "
      "loss over a batch gives each row a gradient about as small as 1 / "
      "batch. {} a larger learning rate, or take the sum of the loss. See "
      "docs/optimizers.md. FitOptions::movement_warning switches this warning "
      "off.",
      shorten(found.table),
      found.moved_rows == 0 ? "do not" : "hardly",
      updates,
      rest,
      cause,
      advice));
}

// `found` is the movement of rows that have a gradient.
void warn_of_rest(
    const TableMovement& found,
    int64_t updates,
    const TableConfig& config) {
  // The movement of rows that start at zero is not finite.
  if (found.sampled_rows < kMinTouchedRows ||
      (found.touched_rows > 0 && !std::isfinite(found.movement))) {
    return;
  }
  if (2 * found.moved_rows < found.sampled_rows) {
    warn(
        found,
        updates,
        found.moved_rows == 0
            ? fmt::format(
                  "none of {} rows with a gradient has changed",
                  found.sampled_rows)
            : fmt::format(
                  "only {} of {} rows with a gradient have changed",
                  found.moved_rows,
                  found.sampled_rows),
        fmt::format(
            "The steps of its optimizer are too small for {}.",
            tessera::to_string(config.dtype)),
        "Choose");
    return;
  }
  if (found.touched_rows < kMinTouchedRows) {
    return;
  }
  const bool is_at_start = has_hardly_grown(found);
  if (found.movement >= (is_at_start ? kMinMovement : kMinMovementOfOthers)) {
    return;
  }
  warn(
      found,
      updates,
      fmt::format(
          "half of {} touched rows have moved by less than {:.2g} % of their length",
          found.touched_rows,
          100.0 * found.movement),
      is_at_start
          ? fmt::format(
                "Their accumulators have grown by {:.2g} % since their start, "
                "initial_accumulator_value, so the start alone sets the size "
                "of the steps.",
                100.0 * found.accumulator_growth)
          : "The steps of its optimizer are tiny.",
      is_at_start
          ? "Set a smaller initial_accumulator_value, such as 1e-6, choose"
          : "Use Adam or Adagrad, choose");
}

bool has_table_to_train(const EmbeddingEngine& engine) {
  const auto& tables = static_cast<const TableModule&>(engine).state().tables;
  return std::ranges::any_of(tables, [](const TableState& table) {
    return table.config->trainable && table.optimizer;
  });
}

void warn_of_engine(const std::string& name) {
  TORCH_WARN(fmt::format(
      "[fit] the step has dequeued a training batch of {}, but did not pass "
      "its gradients on, so the tables do not learn. Call apply_gradients() "
      "after backward() in each step. If the batch is not to train the "
      "tables, enqueue it with training = false. "
      "FitOptions::movement_warning switches this warning off.",
      name.empty() ? std::string("the engine")
                   : fmt::format("'{}'", shorten(name))));
}

}  // namespace

void LearningCheck::begin(const torch::nn::Module& model) {
  for (const auto& item : model.named_modules()) {
    const auto& part = item.value();
    const auto* engine = dynamic_cast<const EmbeddingEngine*>(part.get());
    if (engine != nullptr && has_table_to_train(*engine)) {
      engines_.push_back(
          {.engine = part,
           .name = item.key(),
           .updates = engine->iterations()});
    }
    TableModule* tables = TableModule::of(*part);
    if (tables == nullptr || !tables->strategy().is_fused()) {
      continue;
    }
    tables->change_state([&](EmbeddingState& state) {
      for (size_t i = 0; i < state.tables.size(); ++i) {
        TableState& table = state.tables[i];
        if (state.passes == 0 && table.config->trainable && table.optimizer &&
            table.key_rows == nullptr) {
          const auto rows = std::make_shared<SampledRows>(no_rows(table));
          table.first_rows = rows;
          tables_.push_back({.layer = part, .table = i, .rows = rows});
        }
      }
    });
  }
}

void LearningCheck::end_step() {
  std::erase_if(tables_, check_table);
  std::erase_if(engines_, check_engine);
}

bool LearningCheck::check_engine(WatchedEngine& watched) {
  const auto& engine = dynamic_cast<const EmbeddingEngine&>(*watched.engine);
  if (engine.iterations() != watched.updates) {
    return true;
  }
  const bool has_waited =
      std::exchange(watched.is_waiting, engine.has_batch_without_gradients());
  const bool is_forgotten = has_waited && watched.is_waiting;
  if (is_forgotten) {
    warn_of_engine(watched.name);
  }
  return is_forgotten;
}

bool LearningCheck::check_table(WatchedTable& watched) {
  const TableModule& tables = *TableModule::of(*watched.layer);
  if (tables.iterations() < watched.next_check) {
    return false;  // read_state() would wait for lookups
  }
  bool is_checked = true;
  tables.read_state([&](const EmbeddingState& state) {
    const TableState& table = state.tables[watched.table];
    const int64_t updates = updates_of(state, table);
    if (updates < watched.next_check) {
      is_checked = false;
      return;
    }
    const RateState rate =
        state_of(optim::learning_rate_of(*table.optimizer), state.passes);
    if (rate == RateState::kRising) {
      watched.next_check = 2 * updates;
      is_checked = false;
    } else if (rate == RateState::kSteady) {
      warn_of_rest(compare(*watched.rows, table), updates, *table.config);
    }
  });
  return is_checked;
}

}  // namespace tessera::training
