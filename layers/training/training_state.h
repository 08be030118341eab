// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/fit.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::training {

/// The mean loss over examples, as a metric is one over batches.
struct LossMean {
  double total = 0.0;
  double weight = 0.0;

  /// Errors:  as check_loss().
  void add(const StepResult& result);
  double result() const;
};

/// What Training shows of a fit().
struct TrainingState {
  Progress progress = {};
  History history = {};
  Metrics metrics = {};
  Callbacks callbacks = {};
  Strategy strategy = Strategy::engine();
  std::vector<std::string> log_names = {};
  std::map<std::string, Better> better = {};
  /// The log_names() of the callback whose on_epoch_end() runs.
  std::vector<std::string> own_log_names = {};

  Logs epoch_logs = {};
  bool is_at_epoch_end = false;
  bool is_stopping = false;
  bool is_stopped_by_signal = false;
  std::string stop_reason = {};

  LossMean loss_mean = {};
  double loss = std::numeric_limits<double>::quiet_NaN();
  /// Whether the loss of the last step is finite on all ranks.
  bool is_loss_finite = false;
  bool is_skipped = false;

  /// LibTorch's generator when the epoch began, and as it was loaded.
  at::Tensor epoch_generator = {};
  at::Tensor loaded_generator = {};
};

/// The state of LibTorch's CPU generator.
at::Tensor generator_state();
void set_generator_state(const at::Tensor& state);
/// Sets it to what a checkpoint has. On shards it is left alone: a rank's random numbers
/// are its own, but the checkpoint has those of rank 0.
void restore_generator(const TrainingState& state, const at::Tensor& generator);

/// Counts a step's examples.
int64_t examples_of(const StepResult& result);

/// Errors:  c10::ValueError where the step gave nothing to measure.
void update_metrics(const Metrics& metrics, const StepResult& result);

/// Names all that an epoch logs: loss and metrics, those of a validation, and what
/// callbacks log.
/// Errors:  c10::ValueError for an empty name, or one that is there twice.
void name_logs(TrainingState& state, const std::optional<Metrics>& validation);

}  // namespace tessera::training
