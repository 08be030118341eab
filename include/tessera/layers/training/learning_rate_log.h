// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <tessera/layers/training/callback.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

/// Logs the learning rates at the end of each epoch, those of the next step: the
/// dense optimizer's as "learning_rate" ("learning_rate_1", ... for further
/// param groups), a table's as "learning_rate_<table>", at the step counter of
/// its layer. Tables without an optimizer have none. A callable is called once
/// more for it.
class LearningRateLog : public Callback {
 public:
  /// `optimizer` must outlive it.
  explicit LearningRateLog(
      torch::optim::Optimizer& optimizer,
      std::vector<TPUEmbedding> layers = {});
  explicit LearningRateLog(std::vector<TPUEmbedding> layers);

  void on_epoch_end(Training& training) override;
  std::vector<std::string> log_names() const override;

 private:
  struct Table {
    std::string name;
    optim::LearningRate rate;
    TPUEmbedding layer;
  };

  void add(const std::vector<TPUEmbedding>& layers);
  std::vector<std::pair<std::string, double>> dense_rates() const;

  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<Table> tables_;
};

}  // namespace tessera
