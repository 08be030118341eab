// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/sampled_rows.h"
#include "src/engine/update_observer.h"

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace tessera {
struct EmbeddingState;
}  // namespace tessera

namespace tessera::training {

/// Warns if rows hardly move in the first updates of new tables. fit() has one.
///
/// It copies up to 4096 rows of each table at the beginning, and compares them after 100
/// updates. Until then, steps only read a counter. After the comparison, they do nothing.
///
/// If none of these rows has changed, either they were not looked up, or steps are too
/// small for the numbers of the table. The next updates tell which of these is true: some
/// rows that get a gradient are compared with what they were before the update.
///
/// Key tables are left out. So are tables whose rows may rest for a good reason: tables
/// that were trained or loaded before, frozen tables, tables whose learning rate is 0 or a
/// function of the user, tables with fewer than 16 touched rows in the sample, and tables
/// whose rows started at zero. While a schedule raises the learning rate, the comparison
/// waits.
class MovementCheck {
 public:
  /// Copies rows of the tables in `model` that have a fused strategy and no updates yet.
  void begin(const torch::nn::Module& model);
  void end_step() {
    if (!tables_.empty()) {
      check_tables();
    }
  }

 private:
  struct Watched {
    std::shared_ptr<const torch::nn::Module> layer = {};
    size_t table = 0;
    int64_t next_check = 0;  // at this number of updates
    SampledRows rows;
    // If no row has changed so far, rows with a gradient are recorded, until this number
    // of updates.
    std::optional<int64_t> records_until = {};
    std::set<int64_t> recorded = {};  // local rows
    std::vector<SampledRows> before_update = {};  // since the last step
    int64_t compared_rows = 0;  // of those recorded
    int64_t moved_rows = 0;
  };

  void check_tables();
  static bool check_table(const EmbeddingState& state, Watched& watched);
  static bool check_recorded(const EmbeddingState& state, Watched& watched);
  void record_rows(const std::vector<TableUpdate>& updates);

  std::vector<Watched> tables_;
  std::optional<UpdateObserver> observer_;  // while rows are recorded
};

}  // namespace tessera::training
