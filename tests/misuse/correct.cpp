// SPDX-License-Identifier: Apache-2.0
// expects nothing: what looks like the misuse in this folder, but is correct.
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/prefetch.h>
#include <tessera/training/early_stopping.h>
#include <tessera/training/fit.h>
#include <tessera/training/learning_rate_log.h>
#include <tessera/training/progress_bar.h>

#include "tests/misuse/batch.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

// A source with next().
struct Loader {
  std::optional<Batch> next();
};

void train(
    std::vector<Batch>& batches,
    torch::optim::Optimizer& optimizer,
    Loader& loader) {
  tessera::TPUEmbedding layer({.features = {}, .seed = 1});
  tessera::TPUEmbedding copy(layer);
  tessera::MLP mlp({.units = {4, 1}});
  tessera::MLP empty{nullptr};
  empty = mlp;
  namespace training = tessera::training;
  const auto loss_of = [](const Batch& batch) { return batch.clicks.sum(); };
  auto step = training::make_train_step(optimizer, loss_of);
  training::fit(batches, step, {.epochs = 2});
  training::fit(loader, [](auto&& batch) { return batch.clicks; }, {});
  training::fit([&] { return batches; }, step, {});
  training::fit(
      [](int64_t) { return Loader(); },
      [](Batch& batch) { return training::StepResult{.loss = batch.clicks}; },
      {});
  training::fit(training::make_pass(batches, step), {.epochs = 2});
  const auto auc = std::make_shared<training::AUC>();
  training::fit(
      batches,
      step,
      {.model = mlp,
       .metrics = {auc, training::LogLoss()},
       .callbacks = {
           training::ProgressBar(),
           training::EarlyStopping({.monitor = "auc", .restore_best = mlp})}});
  for (auto& [batch, activations] :
       tessera::prefetch(batches, layer, [](const Batch& batch) {
         return std::pair(
             tessera::Features{{"user", batch.users}}, tessera::Weights());
       })) {
    batch.clicks = activations["user"];
  }
  // The entries of temporaries are values.
  for (const auto& [name, value] :
       training::learning_rates(optimizer).entries()) {
    std::string(name).append(std::to_string(value));
  }
  const at::Tensor& user = layer->forward({{"user", batches[0].users}})["user"];
  (void)user;
}
