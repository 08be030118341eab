// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/sampled_rows.h"

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::training {

/// Warns about tables of a model that do not learn. fit() has one.
///
/// It notices rows that hardly move. Before rows of a new table get their first gradient,
/// the first 100 updates copy them, up to 4096 of each table. Then these rows are compared
/// with their copies. Later steps do nothing. Key tables are left out. So are tables whose
/// rows may rest for a good reason: tables that were trained or loaded before, frozen tables,
/// tables whose learning rate is 0 or a function of the user, tables with fewer than 16 rows
/// with a gradient, and tables whose rows started at zero. While a schedule raises the
/// learning rate, the comparison waits.
///
/// It also notices a step that takes training batches from an EmbeddingEngine, but forgets to
/// call apply_gradients(). It looks only at batches that the thread of fit() has dequeued,
/// and only until the first update of the engine. The gradients of a batch may be passed on
/// in the step after its own, so the warning comes at the end of the second step without an
/// update.
class LearningCheck {
 public:
  /// Watches the tables in `model` that have a fused strategy and no updates yet, and the
  /// engines that have a table to train.
  void begin(const torch::nn::Module& model);
  void end_step();

 private:
  using Layer = std::shared_ptr<const torch::nn::Module>;
  struct WatchedTable {
    Layer layer = {};
    size_t table = 0;
    int64_t next_check = kMinUpdates;  // in updates of the table
    std::shared_ptr<SampledRows> rows = {};
  };
  struct WatchedEngine {
    Layer engine = {};
    std::string name = {};  // the path in the model
    int64_t updates = 0;  // when fit() began
    // A batch had no gradients at the end of the last step.
    bool is_waiting = false;
  };

  // Return whether the table or engine needs no further checks.
  static bool check_table(WatchedTable& watched);
  static bool check_engine(WatchedEngine& watched);

  std::vector<WatchedTable> tables_;
  std::vector<WatchedEngine> engines_;
};

}  // namespace tessera::training
