// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/callback.h>
#include <tessera/training/pointers.h>

#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera::training {

/// Returns the learning rates of the next step. The rate of the dense optimizer is named
/// "learning_rate" ("learning_rate_1", ... for further parameter groups). The rate of a
/// table is named "learning_rate_<table>", and is read at the step counter of its layer or
/// EmbeddingEngineModule. Tables without an optimizer are left out. If a learning rate is a
/// callable, this function calls it once more.
/// Errors:  c10::ValueError for an empty layer, and for two tables with the same name.
Logs learning_rates(
    const torch::optim::Optimizer& optimizer,
    const TableModules& layers = {});
Logs learning_rates(const TableModules& layers);

// snippet: tests/docs/reference_training_test.cpp LearningRateLog
/// Logs learning_rates() at the end of each epoch.
///
///   const auto rates =
///       std::make_shared<LearningRateLog>(optimizer, TableModules{embedding});
///   const History history =
///       fit(batches, step, {.epochs = 2, .callbacks = {rates}});
///   const std::vector<double> of_users = history["learning_rate_users"];
class LearningRateLog : public Callback {
 public:
  /// `optimizer` must outlive the callback.
  explicit LearningRateLog(
      torch::optim::Optimizer& optimizer,
      TableModules layers = {});
  explicit LearningRateLog(TableModules layers);

  void on_epoch_end(Training& training) override;
  std::vector<std::string> log_names() const override;

 private:
  torch::optim::Optimizer* optimizer_ = nullptr;
  TableModules layers_;
};

}  // namespace tessera::training
