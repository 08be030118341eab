// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/table_activity.h>

#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>

#include "packages/training/src/ranks.h"
#include "packages/training/src/sampled_rows.h"
#include "src/common/check.h"
#include "src/common/rank_group.h"
#include "src/common/text_table.h"
#include "src/engine/embedding_state.h"

#include <torch/serialize/archive.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace tessera::training {

namespace {

std::string percent_of(double share) {
  return std::isfinite(share) ? fmt::format("{:.3g} %", 100.0 * share) : "-";
}

template <class Visit>
void visit_tables(const std::vector<TPUEmbedding>& layers, Visit visit) {
  for (const TPUEmbedding& layer : layers) {
    for (const TableState& table : TableModule::of(*layer)->state().tables) {
      visit(table);
    }
  }
}

// The key of a table's entry. LibTorch refuses some names of tables.
std::string sample_entry(size_t table, const char* name) {
  return fmt::format("{}_{}", name, table);
}

// An archive with the copies of each table.
std::string samples_to_bytes(
    const std::vector<std::string>& names,
    const std::vector<SampledRows>& tables) {
  torch::serialize::OutputArchive archive;
  for (size_t i = 0; i < tables.size(); ++i) {
    const RowCopies& copies = tables[i].copies();
    archive.write(sample_entry(i, "name"), c10::IValue(names[i]));
    archive.write(sample_entry(i, "max_rows"), c10::IValue(copies.max_rows));
    archive.write(
        sample_entry(i, "complete_to"),
        c10::IValue(static_cast<int64_t>(copies.complete_to)));
    archive.write(sample_entry(i, "ids"), copies.ids, true);
    archive.write(sample_entry(i, "weights"), copies.weights, true);
    if (copies.accumulators.defined()) {
      archive.write(sample_entry(i, "accumulators"), copies.accumulators, true);
    }
  }
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

bool is_float_matrix(const at::Tensor& values, int64_t rows) {
  return values.dim() == 2 && values.size(0) == rows &&
      values.scalar_type() == at::kFloat;
}

// The copies of each table, by its name.
std::map<std::string, RowCopies> samples_from_bytes(const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  std::map<std::string, RowCopies> tables;
  c10::IValue name, max_rows, complete_to;
  for (size_t i = 0; archive.try_read(sample_entry(i, "name"), name); ++i) {
    RowCopies copies;
    archive.read(sample_entry(i, "max_rows"), max_rows);
    archive.read(sample_entry(i, "complete_to"), complete_to);
    copies.max_rows = max_rows.toInt();
    copies.complete_to = static_cast<uint64_t>(complete_to.toInt());
    archive.read(sample_entry(i, "ids"), copies.ids, true);
    archive.read(sample_entry(i, "weights"), copies.weights, true);
    archive.try_read(
        sample_entry(i, "accumulators"), copies.accumulators, true);
    const int64_t rows = copies.ids.numel();
    TESSERA_CHECK_VALUE(
        copies.max_rows >= 1 && copies.ids.dim() == 1 &&
            copies.ids.scalar_type() == at::kLong &&
            is_float_matrix(copies.weights, rows) &&
            (!copies.accumulators.defined() ||
             is_float_matrix(copies.accumulators, rows)),
        "[TableActivity] the copies of table '{}' in the checkpoint are damaged. Load another checkpoint.",
        shorten(name.toStringRef()));
    tables.emplace(name.toStringRef(), std::move(copies));
  }
  return tables;
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

void TableActivity::on_epoch_begin(Training& training) {
  if (samples_ == nullptr) {
    sample(training);
  }
}

// Takes the copies of a loaded state, and copies the rows of tables that are not in it.
void TableActivity::sample(const Training& training) {
  const Ranks ranks = ranks_of(training.strategy());
  const size_t count = ranks == nullptr ? 1 : ranks->size();
  std::map<std::string, std::vector<RowCopies>> loaded;
  const bool has_same_ranks = saved_.size() == count;
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (!has_same_ranks || ranks == nullptr ||
        i == static_cast<size_t>(ranks->rank())) {
      for (auto& [name, copies] : samples_from_bytes(saved_[i])) {
        loaded[name].push_back(std::move(copies));
      }
    }
  }
  auto samples = std::make_unique<Samples>();
  std::vector<std::string> names;
  bool is_complete = has_same_ranks;
  visit_tables(layers_, [&](const TableState& table) {
    names.push_back(table.name);
    const auto found = loaded.find(table.name);
    if (found != loaded.end()) {
      SampledRows rows(merged(found->second));
      if (rows.fits(table)) {
        samples->tables.push_back(std::move(rows));
        return;
      }
    }
    is_complete = false;
    samples->tables.emplace_back(table, options_.max_rows);
  });
  if (!is_complete) {
    const std::string own = samples_to_bytes(names, samples->tables);
    if (ranks != nullptr) {
      // Names a rank that does not have this callback.
      ranks->barrier(Rendezvous::kConfigure);
    }
    saved_ =
        ranks == nullptr ? std::vector<std::string>{own} : ranks->gather(own);
  }
  samples_ = std::move(samples);
}

void TableActivity::save_state(torch::serialize::OutputArchive& archive) const {
  archive.write("ranks", c10::IValue(static_cast<int64_t>(saved_.size())));
  for (size_t i = 0; i < saved_.size(); ++i) {
    const at::Tensor bytes =
        at::empty({static_cast<int64_t>(saved_[i].size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), saved_[i].data(), saved_[i].size());
    archive.write(fmt::format("rank_{}", i), bytes, true);
  }
}

void TableActivity::load_state(torch::serialize::InputArchive& archive) {
  c10::IValue ranks;
  archive.read("ranks", ranks);
  saved_.clear();
  for (int64_t i = 0; i < ranks.toInt(); ++i) {
    at::Tensor bytes;
    archive.read(fmt::format("rank_{}", i), bytes, true);
    saved_.emplace_back(
        static_cast<const char*>(bytes.const_data_ptr()),
        static_cast<size_t>(bytes.numel()));
  }
  samples_.reset();
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
