// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/table_activity.h>

#include "layers/table_module.h"
#include "layers/text_table.h"
#include "layers/training/sampled_rows.h"
#include "src/common/check.h"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <utility>

namespace tessera::training {

namespace {

std::string percent_of(double share) {
  return std::isfinite(share) ? fmt::format("{:.3g} %", 100.0 * share) : "-";
}

template <class Visit>
void visit_tables(const std::vector<TPUEmbedding>& layers, Visit visit) {
  for (const TPUEmbedding& layer : layers) {
    for (const TableState& table : TableModule::of(*layer)->state->tables) {
      visit(table);
    }
  }
}

}  // namespace

std::string to_string(const std::vector<TableMovement>& movements) {
  std::vector<std::vector<std::string>> lines{
      {"table", "touched", "of rows", "moved by", "accumulators grew by"}};
  for (const TableMovement& movement : movements) {
    lines.push_back(
        {movement.table,
         std::to_string(movement.touched_rows),
         std::to_string(movement.sampled_rows),
         percent_of(movement.movement),
         percent_of(movement.accumulator_growth)});
  }
  return align(lines);
}

// One entry per table, in the order of visit_tables().
struct TableActivity::Samples {
  std::vector<SampledRows> tables = {};
};

TableActivity::TableActivity(
    std::vector<TPUEmbedding> layers,
    TableActivityOptions options)
    : layers_(std::move(layers)), options_(options) {
  TESSERA_CHECK_VALUE(
      options_.max_rows >= 1,
      "[TableActivity] max_rows must be >= 1, but got {}. Set it to the number of rows to compare.",
      options_.max_rows);
  std::set<std::string> names;
  for (const TPUEmbedding& layer : layers_) {
    TESSERA_CHECK_VALUE(
        !layer.is_empty(),
        "[TableActivity] expected a layer, but got an empty one. Make the layer first.");
  }
  visit_tables(layers_, [&](const TableState& table) {
    TESSERA_CHECK_VALUE(
        names.insert(table.name).second,
        "[TableActivity] two tables are named '{}'. Rename one of them, or use two TableActivity objects outside of fit().",
        table.name);
  });
}

TableActivity::~TableActivity() = default;

TableActivity::TableActivity(TableActivity&& other) noexcept = default;

std::vector<TableMovement> TableActivity::measure() const {
  std::vector<TableMovement> movements;
  if (samples_ != nullptr) {
    visit_tables(layers_, [&](const TableState& table) {
      movements.push_back(samples_->tables[movements.size()].compare(table));
    });
  }
  return movements;
}

void TableActivity::on_epoch_begin(Training& /*training*/) {
  if (samples_ != nullptr) {
    return;
  }
  samples_ = std::make_unique<Samples>();
  visit_tables(layers_, [&](const TableState& table) {
    samples_->tables.emplace_back(table, options_.max_rows);
  });
}

void TableActivity::on_epoch_end(Training& training) {
  for (const TableMovement& movement : measure()) {
    training.log("moved_" + movement.table, movement.movement);
  }
}

std::vector<std::string> TableActivity::log_names() const {
  std::vector<std::string> names;
  visit_tables(layers_, [&](const TableState& table) {
    names.push_back("moved_" + table.name);
  });
  return names;
}

}  // namespace tessera::training
