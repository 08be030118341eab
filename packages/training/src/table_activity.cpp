// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/table_activity.h>

#include <tessera/engine/table_module.h>

#include "packages/training/src/ranks.h"
#include "src/common/check.h"
#include "src/common/rank_group.h"
#include "src/common/text.h"
#include "src/engine/embedding_state.h"
#include "src/engine/sampled_rows.h"

#include <torch/serialize/archive.h>

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

namespace tessera::training {

namespace {

std::string percent_of(double share) {
  return std::isfinite(share) ? fmt::format("{:.3g} %", 100.0 * share) : "-";
}

template <class Visit>
void visit_tables(const TableModules& layers, Visit visit) {
  for (const auto& layer : layers) {
    layer->read_state([&](const EmbeddingState& state) {
      for (const TableState& table : state.tables) {
        visit(table);
      }
    });
  }
}

// The fields of SampledRows, as an archive has them: table, numbers and tensors.
using Entry =
    std::tuple<std::string, std::vector<int64_t>, std::vector<at::Tensor>>;

std::string entry_name(size_t table) {
  return fmt::format("table_{}", table);
}

// Returns an archive with the copies of each table.
std::string samples_to_bytes(const std::vector<SampledRows>& tables) {
  torch::serialize::OutputArchive archive;
  for (size_t i = 0; i < tables.size(); ++i) {
    const SampledRows& rows = tables[i];
    archive.write(
        entry_name(i),
        c10::IValue(Entry(
            rows.table,
            {rows.max_rows, static_cast<int64_t>(rows.complete_to)},
            {rows.ids, rows.weights, rows.accumulators})));
  }
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void check_state(bool is_good) {
  TESSERA_CHECK_VALUE(
      is_good,
      "[TableActivity] its state in the checkpoint is damaged, or of another version. Load another checkpoint.");
}

// Adds the copies of each table, by its name. Joins them with the copies of other ranks.
void add_samples(
    const std::string& bytes,
    std::map<std::string, SampledRows>& tables) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  c10::IValue entry;
  for (size_t i = 0; archive.try_read(entry_name(i), entry); ++i) {
    check_state(entry.isTuple());
    const auto [table, numbers, tensors] = entry.to<Entry>();
    check_state(numbers.size() == 2 && numbers[0] >= 1 && tensors.size() == 3);
    check_state(tensors[0].dim() == 1 && tensors[0].scalar_type() == at::kLong);
    for (const size_t values : {1, 2}) {
      check_state(
          tensors[values].dim() == 2 &&
          tensors[values].size(0) == tensors[0].numel() &&
          tensors[values].scalar_type() == at::kFloat);
    }
    const SampledRows rows{
        .table = table,
        .ids = tensors[0],
        .weights = tensors[1],
        .accumulators = tensors[2],
        .complete_to = static_cast<uint64_t>(numbers[1]),
        .max_rows = numbers[0]};
    const auto [known, is_new] = tables.emplace(table, rows);
    if (!is_new) {
      known->second = joined(known->second, rows);
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

TableActivity::TableActivity(TableModules layers, int64_t max_rows)
    : layers_(std::move(layers)), max_rows_(max_rows) {
  TESSERA_CHECK_VALUE(
      max_rows_ >= 1,
      "[TableActivity] max_rows must be >= 1, but got {}. Set it to the number of rows to compare.",
      max_rows_);
  for (const auto& layer : layers_) {
    TESSERA_CHECK_VALUE(
        layer != nullptr,
        "[TableActivity] expected a layer, but got an empty one. Make the layer first.");
  }
  std::set<std::string> names;
  visit_tables(layers_, [&](const TableState& table) {
    TESSERA_CHECK_VALUE(
        names.insert(table.name).second,
        "[TableActivity] two tables are named '{}'. Rename one of them, or use two TableActivity objects outside of fit().",
        table.name);
  });
}

TableActivity::~TableActivity() = default;

TableActivity::TableActivity(TableActivity&&) noexcept = default;

std::vector<TableMovement> TableActivity::measure() const {
  std::vector<TableMovement> movements;
  if (!samples_.empty()) {
    visit_tables(layers_, [&](const TableState& table) {
      movements.push_back(compare(samples_[movements.size()], table));
    });
  }
  return movements;
}

void TableActivity::on_epoch_begin(Training& training) {
  if (samples_.empty()) {
    sample(training);
  }
}

// Takes the copies of a loaded state, and copies the rows of tables that are not in it.
void TableActivity::sample(const Training& training) {
  const Ranks ranks = ranks_of(training.strategy());
  const auto own = static_cast<size_t>(ranks->rank());
  const bool has_same_ranks =
      saved_.size() == static_cast<size_t>(ranks->size());
  std::map<std::string, SampledRows> loaded;
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (!has_same_ranks || i == own) {
      add_samples(saved_[i], loaded);
    }
  }
  std::vector<SampledRows> samples;
  bool is_complete = has_same_ranks;
  visit_tables(layers_, [&](const TableState& table) {
    const auto found = loaded.find(table.name);
    if (found != loaded.end() &&
        found->second.weights.size(1) == table.config->dim) {
      samples.push_back(found->second);
    } else {
      is_complete = false;
      samples.push_back(sample_rows(table, max_rows_));
    }
  });
  if (!is_complete) {
    const std::string bytes = samples_to_bytes(samples);
    // If a rank does not have this callback, the error names that rank.
    ranks->barrier(Rendezvous::kConfigure);
    saved_ = ranks->gather(bytes);
  }
  samples_ = std::move(samples);
}

void TableActivity::save_state(torch::serialize::OutputArchive& archive) const {
  archive.write("ranks", c10::IValue(saved_));
}

void TableActivity::load_state(torch::serialize::InputArchive& archive) {
  c10::IValue ranks;
  check_state(archive.try_read("ranks", ranks) && ranks.isList());
  saved_ = ranks.to<std::vector<std::string>>();
  samples_.clear();
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
