// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/precision.h>
#include <tessera/engine/strategy.h>
#include <tessera/training/batch_source.h>
#include <tessera/training/callback.h>
#include <tessera/training/checkpoint.h>
#include <tessera/training/history.h>
#include <tessera/training/metrics.h>
#include <tessera/training/pointers.h>
#include <tessera/training/train_step.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::training {

/// Metrics and callbacks are given as pointers or as temporaries, such as {AUC(), loss}.
/// Keep a std::shared_ptr to what you want to read after the training. A named object is
/// refused, because fit() would fill a copy of it.
using Metrics = std::vector<detail::PointerOrValue<Metric>>;
using Callbacks = std::vector<detail::PointerOrValue<Callback>>;

/// What fit() does in addition to the steps.
struct FitOptions {
  /// The number of epochs, >= 0, including those before a resume.
  int64_t epochs = 1;
  /// Unset: an epoch ends when the source does.
  std::optional<int64_t> steps_per_epoch = {};
  /// The model. fit() sets it to train() during epochs and to eval() during validation,
  /// and restores its mode at the end. If the model is in train(), its parts in eval(),
  /// such as frozen ones, stay in eval(). Unset: fit() does not change modes.
  ModelPointer model = {};
  /// Metrics of the training batches, from the predictions of the training steps. The
  /// validation needs metric objects of its own.
  Metrics metrics = {};
  /// What fit() evaluates after each epoch, made by make_pass(source, loss_of). Unset: no
  /// validation.
  std::shared_ptr<Pass> validation = {};
  /// The metrics of the validation. If empty, the same as for training.
  Metrics validation_metrics = {};
  Callbacks callbacks = {};
  /// Saves and resumes the training. Unset: no checkpoints.
  std::shared_ptr<Checkpoint> checkpoint = {};
  /// If true, SIGINT (Ctrl-C) and SIGTERM end the training after the current step, and a
  /// Checkpoint saves it. A second signal ends the process, as it does by default. When
  /// fit() returns, it restores the previous signal handlers. A signal that the process
  /// ignores stays ignored. If false, fit() does not change the signal handlers.
  bool stop_on_signals = true;
  /// Whether fit() warns about tables that do not learn. After 100 updates of a table, it
  /// warns if half of the touched rows have moved by less than 0.01 % of their length. If
  /// the accumulators of their optimizer have hardly grown, this limit is 0.1 %. It also
  /// warns if rows do not move at all although they get gradients, and if two steps in a row
  /// dequeue training batches of an EmbeddingEngineModule, but forget to call
  /// apply_gradients().
  ///
  /// Once, fit() compares at most 4096 rows of each table that got a gradient with their
  /// earlier values. It leaves out key tables, tables that were trained or loaded before,
  /// frozen tables, tables with few touched rows, and tables whose learning rate is 0 or
  /// your own function. While a schedule raises the learning rate, the comparison waits.
  /// `model` must be set, and the strategy of the tables must be fused.
  bool movement_warning = true;
  /// With kRefuse, backward() or step() raises an error if the step would make rows of
  /// tables NaN or infinite. This covers all layers that the step trains on the thread of
  /// fit(), and the dense parameters of a step of make_train_step(). In a step of your own,
  /// the gradients of the parameters of `model` are checked once, before backward() changes
  /// tables for the first time. With kApply, the option of each layer decides about its
  /// tables, and all gradients of dense parameters are applied.
  NonFiniteGradients non_finite_gradients = NonFiniteGradients::kRefuse;
  /// The steps of make_train_step() check that their optimizer has all parameters. Of
  /// other steps, fit() sees only whether `model` gets new parameters. True switches both
  /// checks off.
  bool allow_unoptimized = false;
  /// The strategy whose ranks train together. If it is sharded, all of them stop when one
  /// of them stops. Unset: the strategy of the model's tables. Set it if no table is
  /// sharded, but the steps sum gradients over ranks: to the strategy of these sums.
  std::optional<Strategy> strategy = {};
  /// The precision of the steps and of the validation, unless a step has one in its
  /// TrainStepOptions. A step that was not made by make_train_step() also runs its
  /// backward pass in it. Unset: that of a PrecisionScope around fit(), and otherwise
  /// float32.
  std::optional<Precision> precision = {};
  /// Every n-th step is in History::steps, and so in each checkpoint. 0: no steps.
  int64_t log_every_steps = 0;
};

// snippet: tests/docs/reference_training_test.cpp fit
/// Trains for some epochs: the loop of quick_start.cpp with metrics, validation,
/// callbacks and checkpoints.
///
///   const auto loss_of = [&](const Batch& batch) {
///     const auto scores = model->forward(batch.features).squeeze(1);
///     return StepResult{
///         .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
///         .predictions = scores,
///         .labels = batch.click};
///   };
///   const History history =
///       fit(train_batches,
///           make_train_step(optimizer, loss_of),
///           {.epochs = 10,
///            .model = model,
///            .metrics = {AUC()},
///            .validation = make_pass(test_batches, loss_of),
///            .callbacks = {ProgressBar()}});
///   const double auc = history["val_auc"].back();  // of the last epoch
///
/// `source` and `step` are those of make_pass(). The logs of an epoch have "loss", the
/// mean over examples, and the metrics. The validation runs under NoGradGuard, and its
/// values have the prefix "val_". A signal stops all fit() calls that run, nested ones
/// and those on other threads. If a signal comes too late to stop any of them, the
/// previous signal handler gets it when fit() is done.
///
/// On a busy machine, idle threads of LibTorch make steps many times as slow. fit() warns
/// once if it notices this, and says what to do. See limit_thread_spins().
///
/// After an exception, the mode of the model and the signal handlers are as before fit(),
/// the Checkpoint's directory is unlocked, and the resources of Training::keep() are
/// released. on_train_end() is not called. The checkpoints and files of earlier epochs are
/// complete. An exception of on_epoch_end() is thrown after the epoch was saved, and the
/// other ranks raise an error of their own.
///
/// With a sharded strategy, every rank calls fit() with the same number of training and
/// validation batches. The steps of make_train_step() take the strategy from here. Pass
/// callbacks that print or write files (ProgressBar, CsvHistory, JsonHistory,
/// LearningCurves) on rank 0 only, and Checkpoint, EarlyStopping, TensorBoard and
/// TerminateOnNonFinite on all ranks.
///
/// Loss, metrics and numbers of examples are those of all ranks together, and are equal on
/// all of them. The ranks sum their gradients, so their losses are summed, too: divide the
/// loss of a rank by the size of the batch of all ranks. A metric that has no merge() is
/// logged once per rank, as "name_rank_0" and so on. A callback logs its own values.
///
/// Errors:  c10::ValueError for options, before the training starts; for an epoch
///          without a batch or with fewer than steps_per_epoch; for a loss that is
///          undefined or not one number; for a parameter that no optimizer has; for
///          gradients that are not finite, naming table and feature, or the parameters;
///          on all ranks if the dense weights of ranks differ at the first step;
///          and when a step skipped its update because its loss was not finite, unless
///          max_skipped_steps allows it or the training stops.
History fit(std::shared_ptr<Pass> training, FitOptions options);

template <class Source, class Step>
History fit(Source&& source, Step step, FitOptions options) {
  return fit(
      make_pass(std::forward<Source>(source), std::move(step)),
      std::move(options));
}

// This overload catches braces that do not form a FitOptions, so that the error has few
// lines. The compiler names the wrong field only where the braces have a type.
template <class Source, class Step>
History fit(Source&&, Step, ...) = delete;  // FitOptions{...} names the field

/// Returns "loss" and the metrics over all batches of `pass`, under NoGradGuard. On several
/// ranks, these are the values of this rank. Metric::merge() combines them.
/// Without a precision, that of a PrecisionScope around the call counts.
/// Errors:  c10::ValueError if `pass` has no batch.
Logs evaluate(
    Pass& pass,
    const Metrics& metrics = {},
    std::optional<Precision> precision = {});

/// Checks metrics and their names, as fit() does, for an evaluation of your own.
/// Errors:  c10::ValueError beginning with `where` for a metric that is null, is named
///          "loss" or "epoch", or has the name of another metric.
void check_metrics(const Metrics& metrics, const std::string& where);

}  // namespace tessera::training
