// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <tessera/layers/training/callback.h>

#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera::training {

/// Returns the learning rates of the next step: that of the dense optimizer as
/// "learning_rate" ("learning_rate_1", ... for further parameter groups), that of a table
/// as "learning_rate_<table>", at the step counter of its layer. Tables without an
/// optimizer are left out. A learning rate that is a callable is called once more for it.
/// Errors:  c10::ValueError for an empty layer, and for two tables with the same name.
Logs learning_rates(
    const torch::optim::Optimizer& optimizer,
    const std::vector<TPUEmbedding>& layers = {});
Logs learning_rates(const std::vector<TPUEmbedding>& layers);

/// Logs learning_rates() at the end of each epoch.
class LearningRateLog : public Callback {
 public:
  /// `optimizer` must outlive the callback.
  explicit LearningRateLog(
      torch::optim::Optimizer& optimizer,
      std::vector<TPUEmbedding> layers = {});
  explicit LearningRateLog(std::vector<TPUEmbedding> layers);

  void on_epoch_end(Training& training) override;
  std::vector<std::string> log_names() const override;

 private:
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<TPUEmbedding> layers_;
};

}  // namespace tessera::training
