// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/movement_check.h"

#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>

#include "optim/row_update.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/embedding_state.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>

namespace tessera::training {

namespace {

constexpr size_t kMaxRecordedRows = 64;
// Rows that have moved by less than this in 100 updates need more than 100,000 updates to
// move by their own length. This limit is for rows whose accumulators have hardly grown.
constexpr double kMinMovement = 1e-3;
// The limit for all other rows: a million updates. Users may want small steps there.
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
    // The schedule ends before that step, such as CosineDecayRestarts with t_mul < 1.
  }
  return now > 0.0 ? RateState::kSteady : RateState::kUnknown;
}

bool hardly_moves(const TableMovement& found) {
  if (found.touched_rows < kMinTouchedRows || !std::isfinite(found.movement)) {
    return false;
  }
  return found.movement <
      (has_hardly_grown(found) ? kMinMovement : kMinMovementOfOthers);
}

void warn(const TableMovement& found, int64_t updates) {
  const bool is_at_start = has_hardly_grown(found);
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

void warn_of_rest(
    const TableState& table,
    int64_t updates,
    int64_t moved,
    int64_t rows) {
  TORCH_WARN(fmt::format(
      "[fit] the rows of table '{}' {}: after {} updates, {} of {} rows with a "
      "gradient {} changed. The steps of its optimizer are too small for {}. A "
      "mean loss over a batch gives each row a gradient about as small as 1 / "
      "batch. Choose a larger learning rate, or take the sum of the loss. See "
      "docs/optimizers.md. FitOptions::movement_warning switches this warning "
      "off.",
      shorten(table.name),
      moved == 0 ? "do not move" : "hardly move",
      updates,
      moved == 0 ? "none" : fmt::format("only {}", moved),
      rows,
      moved == 0 ? "has" : "have",
      tessera::to_string(table.config->dtype)));
}

bool is_zero(const float* values, int64_t count) {
  return std::all_of(
      values, values + count, [](float value) { return value == 0.0F; });
}

// Adds rows that get a gradient other than zero to `rows`, until `rows` has
// kMaxRecordedRows. Returns the rows that were added.
std::vector<int64_t> add_rows_with_gradient(
    const TableUpdate& update,
    std::set<int64_t>& rows) {
  std::vector<int64_t> added;
  for (const TableUpdate::Term& term : update.terms) {
    const IdBags& bags = *term.bags;
    for (int64_t bag = 0; bag < bags.bags; ++bag) {
      const int64_t source =
          term.positions == nullptr ? bag : int64_t{term.positions[bag]};
      if (bags.begin(bag) == bags.end(bag) ||
          is_zero(term.gradient + source * term.stride, bags.dim)) {
        continue;
      }
      for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
        if (rows.size() == kMaxRecordedRows) {
          return added;
        }
        const uint32_t row = term.ids()[i];
        const bool has_weight = bags.weights.empty() || bags.weights[i] != 0.0F;
        if (row != kNoRow && has_weight && rows.insert(row).second) {
          added.push_back(row);
        }
      }
    }
  }
  return added;
}

}  // namespace

void MovementCheck::begin(const torch::nn::Module& model) {
  for (const auto& part : model.modules()) {
    const auto* tables = TableModule::of(*part);
    if (tables == nullptr || !tables->strategy().is_fused()) {
      continue;
    }
    tables->read_state([&](const EmbeddingState& state) {
      for (size_t i = 0; i < state.tables.size(); ++i) {
        const TableState& table = state.tables[i];
        if (state.passes == 0 && table.config->trainable && table.optimizer &&
            table.key_rows == nullptr && table.parameters.size(0) > 0) {
          tables_.push_back(
              {.layer = part,
               .table = i,
               .next_check = kMinUpdates,
               .rows = SampledRows(table)});
        }
      }
    });
  }
}

void MovementCheck::check_tables() {
  std::erase_if(tables_, [](Watched& watched) {
    const TableModule& tables = *TableModule::of(*watched.layer);
    if (tables.iterations() < watched.next_check &&
        watched.before_update.empty()) {
      return false;  // read_state() would wait for lookups
    }
    bool is_checked = false;
    tables.read_state([&](const EmbeddingState& state) {
      is_checked = watched.records_until ? check_recorded(state, watched)
                                         : check_table(state, watched);
    });
    return is_checked;
  });
  const bool is_recording =
      std::any_of(tables_.begin(), tables_.end(), [](const Watched& watched) {
        return watched.records_until.has_value();
      });
  if (!is_recording) {
    observer_.reset();
  } else if (!observer_) {
    observer_.emplace([this](const std::vector<TableUpdate>& updates) {
      record_rows(updates);
    });
  }
}

// Returns whether the table needs no further checks.
bool MovementCheck::check_table(const EmbeddingState& state, Watched& watched) {
  const TableState& table = state.tables[watched.table];
  const int64_t updates = updates_of(state, table);
  if (updates < watched.next_check) {
    return false;
  }
  switch (state_of(optim::learning_rate_of(*table.optimizer), state.passes)) {
    case RateState::kUnknown:
      return true;
    case RateState::kRising:
      watched.next_check = 2 * updates;
      return false;
    case RateState::kSteady:
      break;
  }
  const TableMovement found = watched.rows.compare(table);
  if (found.touched_rows == 0) {
    watched.records_until = watched.next_check = updates + kMinUpdates;
    return false;
  }
  if (hardly_moves(found)) {
    warn(found, updates);
  }
  return true;
}

// An update must not fail because of this check. If there is no memory, fewer rows are
// recorded.
void MovementCheck::record_rows(const std::vector<TableUpdate>& updates) try {
  for (Watched& watched : tables_) {
    const EmbeddingState& state = TableModule::of(*watched.layer)->state();
    const TableState* table = &state.tables[watched.table];
    for (const TableUpdate& update : updates) {
      if (watched.records_until && update.table == table) {
        const std::vector<int64_t> rows =
            add_rows_with_gradient(update, watched.recorded);
        if (!rows.empty()) {
          watched.before_update.emplace_back(*table, rows);
        }
      }
    }
  }
} catch (const std::exception&) {
}

// As check_table().
bool MovementCheck::check_recorded(
    const EmbeddingState& state,
    Watched& watched) {
  const TableState& table = state.tables[watched.table];
  for (const SampledRows& rows : watched.before_update) {
    const TableMovement found = rows.compare(table);
    // Rows whose accumulators alone have changed count as touched, too.
    if (2 * found.moved_rows >= found.touched_rows && found.moved_rows > 0) {
      return true;
    }
    watched.compared_rows += found.sampled_rows;
    watched.moved_rows += found.moved_rows;
  }
  watched.before_update.clear();
  const int64_t updates = updates_of(state, table);
  if (watched.compared_rows < kMinTouchedRows) {
    return updates >= *watched.records_until;
  }
  if (state_of(optim::learning_rate_of(*table.optimizer), state.passes) ==
      RateState::kSteady) {
    warn_of_rest(table, updates, watched.moved_rows, watched.compared_rows);
  }
  return true;
}

}  // namespace tessera::training
