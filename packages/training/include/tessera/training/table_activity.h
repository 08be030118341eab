// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/table_movement.h>
#include <tessera/training/callback.h>
#include <tessera/training/pointers.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {
struct SampledRows;
}  // namespace tessera

namespace tessera::training {

using tessera::TableMovement;

/// One line per table, with the numbers of touched and sampled rows, how far the touched
/// rows have moved, and by how much their accumulators have grown.
std::string to_string(const std::vector<TableMovement>& movements);

// snippet: tests/docs/reference_traps_test.cpp TableActivity
/// Logs at the end of each epoch how far the rows of each table have moved since the start
/// of this training, as "moved_<table>". This shows which tables of layers or
/// EmbeddingEngineModules do not learn.
///
///   const auto activity = std::make_shared<TableActivity>(
///       TableModules{embedding}, /*max_rows=*/1000);
///   const History history =
///       fit(batches, step, {.epochs = 2, .callbacks = {activity}});
///   const double moved = history["moved_users"].back();
///   for (const TableMovement& found : activity->measure()) {
///     std::cout << found.table << " " << found.accumulator_growth << "\n";
///   }
///   std::cout << to_string(activity->measure());  // the same as a table
///
/// It copies max_rows rows of each table at the start, and compares them at the end of
/// each epoch. Steps cost nothing. Checkpoints have the copies, so that a resumed training
/// logs the same values. In a key table, a key that came later is compared with
/// its initial value.
///
/// On a sharded strategy, each rank measures the rows that it holds. Pass the callback on
/// all ranks: rank 0 saves the copies of all ranks.
///
/// fit() makes one such comparison without the callback, and warns about tables whose
/// rows hardly move. See FitOptions::movement_warning.
/// Errors:  c10::ValueError for an empty layer, two tables with the same name, and
///          max_rows < 1.
class TableActivity : public Callback {
 public:
  explicit TableActivity(TableModules layers, int64_t max_rows = 4096);
  ~TableActivity() override;
  TableActivity(TableActivity&&) noexcept;

  /// The movement of each table since the first epoch began. Before that, empty.
  std::vector<TableMovement> measure() const;

  void on_epoch_begin(Training& training) override;
  void on_epoch_end(Training& training) override;
  std::vector<std::string> log_names() const override;
  std::string state_name() const override {
    return "TableActivity";
  }
  bool has_epoch_state() const override {
    return false;
  }
  void save_state(torch::serialize::OutputArchive& archive) const override;
  void load_state(torch::serialize::InputArchive& archive) override;

 private:
  void sample(const Training& training);

  TableModules layers_;
  int64_t max_rows_;
  // One entry per table. Empty before the first epoch.
  std::vector<SampledRows> samples_;
  // The samples of each rank, as archives. Ranks other than 0 have only the samples that
  // they have loaded.
  std::vector<std::string> saved_;
};

}  // namespace tessera::training
