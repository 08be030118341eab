// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/fit.h>

#include "packages/training/src/ranks.h"

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::training {

/// The mean of the loss over all examples of an epoch.
struct LossMean {
  double total = 0.0;
  double weight = 0.0;

  /// Errors:  as check_loss().
  void add(const StepResult& result, const std::string& where);
  double result() const;
};

/// The state of a running fit(), which Training shows to callbacks.
struct TrainingState {
  Progress progress = {};
  History history = {};
  Metrics metrics = {};
  Callbacks callbacks = {};
  Strategy strategy = Strategy::fused();
  Ranks ranks = ranks_of(Strategy::fused());
  /// The metrics of all ranks after the last step. Unused with one rank.
  Logs step_metrics = {};
  /// The states of `metrics` on each rank, which Training::collect() sets.
  std::vector<std::vector<at::Tensor>> metrics_of_ranks = {};
  std::vector<std::string> log_names = {};
  std::map<std::string, Better> better = {};
  /// The log_names() of the callback whose on_epoch_end() runs.
  std::vector<std::string> own_log_names = {};

  Logs epoch_logs = {};
  bool is_at_epoch_end = false;
  bool is_stopping = false;
  bool is_stopped_by_signal = false;
  std::string stop_reason = {};
  /// What callbacks passed to Training::keep().
  std::vector<std::shared_ptr<void>> kept = {};

  LossMean loss_mean = {};
  /// The mean over the steps since the last record of a step.
  LossMean logged_loss = {};
  double loss = std::numeric_limits<double>::quiet_NaN();
  /// Whether the loss of the last step is finite on all ranks.
  bool is_loss_finite = false;
  bool is_skipped = false;
  bool is_skip_allowed = false;

  /// The state of LibTorch's generator at the start of the epoch.
  at::Tensor epoch_generator = {};
  /// The state of the generator when the loaded checkpoint was saved.
  at::Tensor loaded_generator = {};
};

/// The state of LibTorch's CPU generator.
at::Tensor generator_state();
void set_generator_state(const at::Tensor& state);
/// Sets the generator's state to `generator`, but does nothing with a sharded strategy:
/// each rank has random numbers of its own, but a checkpoint has the state of rank 0 only.
void restore_generator(const TrainingState& state, const at::Tensor& generator);

/// The number of examples of a step; 0 if it is unknown.
int64_t examples_of(const StepResult& result);

/// Adds the predictions of a step to the metrics.
/// Errors:  c10::ValueError beginning with `where` if the step returned no predictions, or
///          lacks the task of a metric.
void update_metrics(
    const Metrics& metrics,
    const StepResult& result,
    const std::string& where);

/// Collects the names of all values that an epoch logs: loss and metrics, also of the
/// validation, and the values of callbacks.
/// Errors:  c10::ValueError for an empty name, or one that is used twice.
void set_log_names(
    TrainingState& state,
    const std::optional<Metrics>& validation);

}  // namespace tessera::training
