// SPDX-License-Identifier: Apache-2.0
// The parts of fit() in a user's own loop.
#include <tessera/training/early_stopping.h>
#include <tessera/training/learning_rate_log.h>
#include <tessera/training/progress_bar.h>
#include <tessera/training/stop_signal.h>

#include "packages/training/tests/training_fixture.h"

#include <signal.h>

namespace tessera::training::plain_loop_test {

// Trains, or resumes a training from `directory`. SIGINT is raised in the step
// with the number `interrupted`, counted from 1.
History train(
    ClickRun& run,
    const std::string& directory,
    int64_t interrupted = 0) {
  const std::vector<ClickBatch> batches = click_batches(5, 1);
  auto& model = run.model;
  auto& optimizer = run.optimizer;
  int64_t steps = 0;
  const auto loss_of = [&](const ClickBatch& batch) {
    if (++steps == interrupted) {
      ::raise(SIGINT);
    }
    return run.loss_of()(batch);
  };
  History history;
  LogLoss log_loss({.scores = ScoreKind::kLogits});
  EarlyStopping stopping({.patience = 2, .better = Better::kLower});
  ProgressBar bar;
  Progress progress{.epochs = 4, .steps_per_epoch = std::ssize(batches)};
  const auto save = [&] {
    const auto extra = [&](torch::serialize::OutputArchive& archive) {
      optimizer.save(archive);
      stopping.save_state(archive);
      archive.write("log_loss", log_loss.state(), /*is_buffer=*/true);
      archive.write("history", c10::IValue(to_json(history).dump()));
      archive.write("epoch", c10::IValue(progress.epoch));
      archive.write("step_in_epoch", c10::IValue(progress.step_in_epoch));
    };
    save_weights(*model, directory, {.extra = extra});
  };
  const auto load = [&](torch::serialize::InputArchive& archive) {
    torch::Tensor log_loss_state;
    c10::IValue saved_history, epoch, step_in_epoch;
    archive.read("log_loss", log_loss_state, /*is_buffer=*/true);
    archive.read("history", saved_history);
    archive.read("epoch", epoch);
    archive.read("step_in_epoch", step_in_epoch);
    optimizer.load(archive);
    stopping.load_state(archive);
    log_loss.load_state(log_loss_state);
    history = history_from_json(Json::parse(saved_history.toStringRef()));
    progress.epoch = epoch.toInt();
    progress.step_in_epoch = step_in_epoch.toInt();
    progress.step =
        progress.epoch * std::ssize(batches) + progress.step_in_epoch;
  };
  if (has_weights(*model, directory)) {
    load_weights(*model, directory, load);
  }

  // snippet: plain_loop
  const tessera::training::StopSignal signal;  // Ctrl-C ends it after the step
  auto step = tessera::training::make_train_step(optimizer, loss_of);
  while (progress.epoch < progress.epochs && !stopping.is_done()) {
    while (progress.step_in_epoch < std::ssize(batches)) {
      torch::manual_seed(progress.step);  // what dropout draws, resumed or not
      const auto result = step(batches[progress.step_in_epoch]);
      log_loss.update(result.predictions, result.labels);
      ++progress.step_in_epoch;
      ++progress.step;
      bar.show(progress, {{"log_loss", log_loss.result()}});
      if (signal.name() != nullptr) {
        save();
        return history;
      }
    }
    auto logs = tessera::training::learning_rates(optimizer);
    logs.set("log_loss", log_loss.result());
    bar.end_epoch(progress, logs);
    history.epochs.push_back({progress.epoch, logs});
    if (stopping.update(progress.epoch, log_loss.result())) {
      tessera::training::save_weights(*model, directory + "/best");
    }
    log_loss.reset();
    progress.step_in_epoch = 0;
    ++progress.epoch;
    save();
  }
  return history;
  // end snippet
}

TEST(PlainLoopTest, ResumesBitForBitWhereItWasInterrupted) {
  const TemporaryFolder folder;
  for (const int64_t layers : {0, 2}) {
    ClickRun uninterrupted(layers);
    const std::string path = folder / std::to_string(layers);
    const auto history = train(uninterrupted, path);
    EXPECT_EQ(history.epochs.size(), 4U);
    for (const int64_t interrupted : {1, 5, 7}) {
      ClickRun first(layers), resumed(layers), best(layers);
      const std::string parts = path + "_" + std::to_string(interrupted);
      EXPECT_EQ(
          std::ssize(train(first, parts, interrupted).epochs),
          (interrupted - 1) / 5);
      EXPECT_EQ(to_csv(train(resumed, parts)), to_csv(history));
      EXPECT_EQ(resumed.bytes(), uninterrupted.bytes());
      load_weights(*best.model, parts + "/best");
    }
  }
}

}  // namespace tessera::training::plain_loop_test
