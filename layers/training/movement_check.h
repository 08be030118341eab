// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/training/sampled_rows.h"

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {
struct EmbeddingState;
}  // namespace tessera

namespace tessera::training {

/// Warns if rows hardly move in the first updates of new tables. fit() has one.
///
/// It compares up to 4096 rows of each table, once at the beginning and once after 100
/// updates. Other steps only read a counter, and none does after the comparison.
///
/// Some tables are left out, because their rows may rest for a good reason: tables that
/// were trained or loaded before, tables that are frozen, a learning rate that is 0 or a
/// function of the user, fewer than 16 touched rows in the sample, and rows that started
/// at zero. While a schedule raises the learning rate, the comparison waits.
class MovementCheck {
 public:
  /// Copies rows of the tables in `model` that are on an engine and have no updates yet.
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
  };

  void check_tables();
  static bool check_table(const EmbeddingState& state, Watched& watched);

  std::vector<Watched> tables_;
};

}  // namespace tessera::training
