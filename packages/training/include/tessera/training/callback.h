// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/engine/strategy.h>
#include <tessera/training/history.h>
#include <tessera/training/metrics.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace tessera::training {

/// How far a training has progressed.
struct Progress {
  int64_t epochs = 1;
  /// Unset: unknown.
  std::optional<int64_t> steps_per_epoch = {};
  /// The current epoch, counted from 0; `epochs` after the last one.
  int64_t epoch = 0;
  /// Steps done in this epoch.
  int64_t step_in_epoch = 0;
  /// Steps done since the training began.
  int64_t step = 0;
  /// Examples seen by all ranks since the training began; 0 if the steps do not report
  /// them.
  int64_t examples = 0;

  bool operator==(const Progress&) const = default;

  TESSERA_FIELDS(epochs, steps_per_epoch, epoch, step_in_epoch, step, examples)
};

struct TrainingState;

/// The state of a running fit(), as callbacks see it.
class Training {
 public:
  explicit Training(TrainingState& state) : state_(state) {}

  const Progress& progress() const;
  /// The epochs that have ended. In on_epoch_end() they include the current one.
  const History& history() const;
  /// In on_step_end(): the loss and the cheap metrics (see Metric::is_cheap()) of the epoch
  /// so far. On several ranks, these are the metrics whose state() has at most 1024 numbers
  /// on each rank. In on_epoch_end(): everything that the epoch has logged so far. A
  /// callback without log_names() sees all of it.
  Logs logs() const;
  /// The loss of the last step, summed over the ranks; NaN before the first.
  double loss() const;
  /// Returns whether the loss of the last step was finite, on all ranks if tables are
  /// sharded. If is_skip_allowed(), a skipped step counts as finite. False before the first
  /// step. In on_step_end() of a callback, this is still the result of the previous step.
  bool is_loss_finite() const;
  /// Whether the last step skipped its update because its loss was not finite.
  bool is_skipped() const;
  /// Whether TrainStepOptions::max_skipped_steps allows that the last step was skipped. The
  /// loss of such a step counts in no mean.
  bool is_skip_allowed() const;

  /// FitOptions::strategy.
  const Strategy& strategy() const;
  /// Whether any rank passes true. All ranks call it. Use it where ranks must agree, but
  /// each has its own clock or files.
  bool on_any_rank(bool flag) const;

  /// All names that the logs of an epoch will have.
  std::vector<std::string> log_names() const;
  Better better(const std::string& log_name) const;
  /// Adds a value to the logs of the epoch.
  /// Errors:  c10::ValueError outside of on_epoch_end(), and unless the callback lists
  ///          `name` in its log_names().
  void log(const std::string& name, double value);

  /// Ends the training after this step, or before the next epoch. If it is called more
  /// than once, the first reason is kept.
  void stop(const std::string& reason);
  bool is_stopping() const;
  /// Records in the history from which epoch the model has its weights now.
  void set_restored(History::Restored restored);

  /// Keeps `resource` until fit() ends, also if an exception ends it. The destructor of
  /// `resource` can undo what a callback did in on_train_begin().
  void keep(std::shared_ptr<void> resource);

  /// Collects the metrics of all ranks for save(). All ranks call it before one calls
  /// save(). Without ranks, it does nothing.
  void collect();
  /// Saves the state that is not in the model or the optimizer: progress, history, the
  /// callbacks' state, LibTorch's random generator and, in the middle of an epoch, the
  /// metrics.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Checks everything before it changes anything. Only the callbacks' load_state() runs
  /// after that and may still raise.
  /// Errors:  c10::ValueError if the state is from the middle of an epoch, and this
  ///          training has other metrics or shorter epochs.
  void load(torch::serialize::InputArchive& archive);

 private:
  TrainingState& state_;
};

// snippet: tests/docs/reference_training_test.cpp Callback
/// An observer of a training. fit() calls callbacks from its own thread, in the order of
/// FitOptions::callbacks, and before FitOptions::checkpoint. In on_epoch_end() callbacks
/// with log_names() come first.
///
/// An exception from a callback ends fit(). In on_epoch_end() fit() first calls the other
/// callbacks and lets the checkpoint save the epoch. The checkpoint does not save it if
/// has_epoch_state() of the callback that threw is true, because the state of this callback
/// may lack the epoch.
///
///   class ExampleLimit : public Callback {
///    public:
///     void on_step_end(Training& training) override {
///       const Progress& progress = training.progress();
///       if (progress.examples >= 24) {
///         training.stop("24 examples");
///       }
///     }
///   };
///   const auto limit = std::make_shared<ExampleLimit>();
///   const History history = fit(batches, step, {.callbacks = {limit}});
class Callback {
 public:
  virtual ~Callback() = default;

  /// Called before the training starts or resumes. Throw here if the options cannot work.
  virtual void on_train_begin(Training& /*training*/) {}
  virtual void on_epoch_begin(Training& /*training*/) {}
  virtual void on_step_end(Training& /*training*/) {}
  virtual void on_epoch_end(Training& /*training*/) {}
  /// Called after the last step, before on_train_end() of any callback. Change the model
  /// here, so that on_train_end() of the other callbacks sees the final model.
  virtual void on_last_step(Training& /*training*/) {}
  /// Called at the end and after a stop, but not after an exception. Use Training::keep()
  /// for what must be undone in every case.
  virtual void on_train_end(Training& /*training*/) {}

  /// The names that this callback logs in on_epoch_end().
  virtual std::vector<std::string> log_names() const {
    return {};
  }
  /// Whether higher or lower values are better, for a name of log_names().
  virtual Better better(const std::string& /*log_name*/) const {
    return Better::kUnknown;
  }

  /// The directory into which this callback saves models; nothing else may use it. Empty:
  /// none.
  virtual std::string directory() const {
    return {};
  }

  /// The name of this callback's state in checkpoints. A resumed training finds the state
  /// by this name. If empty, the callback has no state.
  virtual std::string state_name() const {
    return {};
  }
  /// Whether on_epoch_end() changes the state.
  virtual bool has_epoch_state() const {
    return !state_name().empty();
  }
  virtual void save_state(torch::serialize::OutputArchive& /*archive*/) const {}
  /// Called after on_train_begin() when a training is resumed.
  virtual void load_state(torch::serialize::InputArchive& /*archive*/) {}
};

}  // namespace tessera::training
