// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>
#include <tessera/layers/training/batch_source.h>
#include <tessera/layers/training/callback.h>
#include <tessera/layers/training/checkpoint.h>
#include <tessera/layers/training/history.h>
#include <tessera/layers/training/metrics.h>
#include <tessera/layers/training/train_step.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::training {

using Metrics = std::vector<std::shared_ptr<Metric>>;
using Callbacks = std::vector<std::shared_ptr<Callback>>;

/// What is evaluated after each epoch.
struct Validation {
  /// make_pass(source, loss_of).
  std::shared_ptr<Pass> pass = {};
  /// Empty: those of the training.
  Metrics metrics = {};
};
static_assert(std::is_aggregate_v<Validation>);

/// What SIGINT (Ctrl-C) and SIGTERM do during fit().
enum class Signals {
  /// End the training after the current step, with a checkpoint where there is a
  /// Checkpoint. A second one ends the process as it does by default. What
  /// stood before is restored when fit() returns; a signal that was ignored stays so.
  kStop,
  /// What they did before.
  kLeave
};

/// What fit() does beside the steps.
struct FitOptions {
  /// >= 0, with those before a resume.
  int64_t epochs = 1;
  /// Unset: until the source ends.
  std::optional<int64_t> steps_per_epoch = {};
  /// The model, which is in train() during epochs and in eval() during validation, and
  /// afterwards as before. Parts in eval() of a model in train(), such as frozen ones, stay in
  /// eval(). Unset: modes are left alone.
  std::shared_ptr<torch::nn::Module> model = {};
  /// Measured on the training batches, as they are predicted in training. Give other
  /// objects than those of the validation.
  Metrics metrics = {};
  std::optional<Validation> validation = {};
  Callbacks callbacks = {};
  /// Saves the training and resumes it. Unset: neither.
  std::shared_ptr<Checkpoint> checkpoint = {};
  Signals signals = Signals::kStop;
  /// That of the model's tables, or of the gradients' sums where no table is on
  /// shards. On shards all ranks end with the first that stops.
  Strategy strategy = Strategy::engine();
};
static_assert(std::is_aggregate_v<FitOptions>);

/// Trains for some epochs; the loop of quick_start.cpp, with what one adds to it.
///
///   const auto loss_of = [&](const Batch& batch) {
///     const auto scores = model->forward(batch.features);
///     return StepResult{
///         .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
///         .predictions = scores,
///         .labels = batch.click};
///   };
///   const History history = fit(
///       train_batches,
///       make_train_step(optimizer, loss_of),
///       {.epochs = 10,
///        .model = model.ptr(),
///        .metrics = {std::make_shared<AUC>()},
///        .validation = Validation{.pass = make_pass(test_batches, loss_of)},
///        .callbacks = {std::make_shared<ProgressBar>()}});
///   history["val_auc"];  // one per epoch
///
/// `source` and `step` are those of make_pass(). Each epoch is logged as "loss",
/// the mean over examples, and the metrics; those of the validation, which runs
/// under NoGradGuard, with "val_" before. A signal counts in all fit() calls that
/// run, nested ones or on other threads; one that comes too late to end any does,
/// when fit() is done, what it did before.
///
/// After an exception the model is in the mode that it had, signals do what they
/// did, the Checkpoint's directory is free for others, and on_train_end() is not
/// called; the checkpoints and files of the epochs before are whole. One from
/// on_epoch_end() comes when the epoch is saved, and the other ranks get an error of
/// their own.
///
/// On shards every rank calls it with as many batches, and logs its own. Give
/// callbacks that print or write files (ProgressBar, CsvHistory, JsonHistory,
/// LearningCurves) on rank 0 alone; Checkpoint, EarlyStopping and
/// TerminateOnNonFinite on all, and as many validation batches.
///
/// Errors:  c10::ValueError for options, before anything is trained; for an
///          epoch without a batch or with fewer than steps_per_epoch; for a loss
///          that is undefined or not one number; and when a step was left out, as
///          its loss was not finite, and no callback stops.
History fit(std::shared_ptr<Pass> training, FitOptions options);

template <class Source, class Step>
History fit(Source&& source, Step step, FitOptions options) {
  return fit(
      make_pass(std::forward<Source>(source), std::move(step)),
      std::move(options));
}

/// "loss" and the metrics over all batches of `pass`, under NoGradGuard.
/// Errors:  c10::ValueError when it has no batch.
Logs evaluate(Pass& pass, const Metrics& metrics = {});

}  // namespace tessera::training
