// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>
#include <tessera/layers/training/history.h>
#include <tessera/layers/training/metrics.h>

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

/// How far a training is.
struct Progress {
  int64_t epochs = 1;
  /// Unset: not known.
  std::optional<int64_t> steps_per_epoch = {};
  /// From 0; `epochs` after the last one.
  int64_t epoch = 0;
  /// Done in this epoch.
  int64_t step_in_epoch = 0;
  /// Done in all.
  int64_t step = 0;
  /// Examples seen in all; 0 when steps don't say.
  int64_t examples = 0;

  bool operator==(const Progress&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("epochs", self.epochs);
    visit("steps_per_epoch", self.steps_per_epoch);
    visit("epoch", self.epoch);
    visit("step_in_epoch", self.step_in_epoch);
    visit("step", self.step);
    visit("examples", self.examples);
  }
};

struct TrainingState;

/// What callbacks see of a running fit().
class Training {
 public:
  explicit Training(TrainingState& state) : state_(state) {}

  const Progress& progress() const;
  /// The epochs that ended; in on_epoch_end() with this one.
  const History& history() const;
  /// In on_step_end() loss and cheap metrics of the epoch so far; in
  /// on_epoch_end() all that the epoch gave.
  Logs logs() const;
  /// The loss of the last step; NaN before the first.
  double loss() const;
  /// Whether the last step's loss was; on shards, on all ranks. False before the
  /// first.
  bool is_loss_finite() const;
  /// Whether the last step left out its update: its loss was not finite.
  bool is_skipped() const;

  /// FitOptions::strategy.
  const Strategy& strategy() const;

  /// All names that the logs of an epoch will have.
  std::vector<std::string> log_names() const;
  Better better(const std::string& log_name) const;
  /// In on_epoch_end() of a callback that has `name` among its log_names().
  /// Errors:  c10::ValueError otherwise.
  void log(const std::string& name, double value);

  /// Ends the training: after this step, or before the next epoch. The first
  /// reason is kept.
  void stop(const std::string& reason);
  bool is_stopping() const;

  /// All of it that is not in model or optimizer: progress, history, metrics and
  /// callbacks in the middle of an epoch, LibTorch's random numbers.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Everything is compared before anything is changed; what callbacks refuse
  /// comes last.
  /// Errors:  c10::ValueError where this training has other metrics or shorter
  ///          epochs.
  void load(torch::serialize::InputArchive& archive);

 private:
  TrainingState& state_;
};

/// Something that happens along with a training. All calls come from the thread
/// that called fit(), in the order of FitOptions::callbacks, and before those of
/// FitOptions::checkpoint; in on_epoch_end() callbacks with log_names() come first. What
/// a callback throws ends fit(); in on_epoch_end() only when the others have been called
/// and the checkpoint has saved the epoch, unless the one that threw has a state, which
/// may lack the epoch.
class Callback {
 public:
  virtual ~Callback() = default;

  /// Before anything is trained or resumed. Refuse here what can't work.
  virtual void on_train_begin(Training& /*training*/) {}
  virtual void on_epoch_begin(Training& /*training*/) {}
  virtual void on_step_end(Training& /*training*/) {}
  virtual void on_epoch_end(Training& /*training*/) {}
  /// At the end, also after a stop; not after an exception.
  virtual void on_train_end(Training& /*training*/) {}

  /// What it will log in on_epoch_end().
  virtual std::vector<std::string> log_names() const {
    return {};
  }

  /// The directory that it saves models into, which nothing else may share. Empty: none.
  virtual std::string directory() const {
    return {};
  }

  /// Names its state in checkpoints, by which a resumed training finds it.
  /// Empty: it has none.
  virtual std::string state_name() const {
    return {};
  }
  virtual void save_state(torch::serialize::OutputArchive& /*archive*/) const {}
  /// After on_train_begin(), when a training is resumed.
  virtual void load_state(torch::serialize::InputArchive& /*archive*/) {}
};

}  // namespace tessera::training
