// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/sampled_rows.h"

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::training {

/// Warns if rows hardly move in the first updates of new tables. fit() has one.
///
/// Before rows get their first gradient, the first 100 updates copy them, up to 4096 of
/// each table. Then these rows are compared with their copies. Later steps do nothing.
///
/// Key tables are left out. So are tables whose rows may rest for a good reason: tables
/// that were trained or loaded before, frozen tables, tables whose learning rate is 0 or a
/// function of the user, tables with fewer than 16 rows with a gradient, and tables
/// whose rows started at zero. While a schedule raises the learning rate, the comparison
/// waits.
class MovementCheck {
 public:
  /// Watches the tables in `model` that have a fused strategy and no updates yet.
  void begin(const torch::nn::Module& model);
  void end_step();

 private:
  struct Watched {
    std::shared_ptr<const torch::nn::Module> layer = {};
    size_t table = 0;
    int64_t next_check = kMinUpdates;  // at this number of updates
    std::shared_ptr<SampledRows> rows = {};
  };

  // Returns whether the table needs no further checks.
  static bool check(Watched& watched);

  std::vector<Watched> tables_;
};

}  // namespace tessera::training
