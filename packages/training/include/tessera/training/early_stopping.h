// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/callback.h>
#include <tessera/training/pointers.h>

#include <cstdint>
#include <string>

namespace tessera::training {

/// What an EarlyStopping monitors, when it stops, and which weights it keeps.
struct EarlyStoppingOptions {
  /// The name of the logged value to monitor.
  std::string monitor = "val_loss";
  /// Training stops after this many epochs without improvement. 0 means the same as 1.
  int64_t patience = 0;
  /// A change counts as an improvement only if it is larger than this, >= 0.
  double min_delta = 0.0;
  /// kUnknown: as the monitored metric defines it.
  Better better = Better::kUnknown;
  /// The model. When training ends, it gets the weights of the best epoch, including tables
  /// and slots. Unset: the model keeps the weights of the last epoch.
  ModelPointer restore_best = {};
  /// The directory that keeps the best weights. Each improvement writes the model to it.
  /// When training ends, it must still hold the weights of the best epoch. No other
  /// callback may use the same directory. Sharded tables need a directory. If empty, the
  /// weights are kept in memory, and a Checkpoint also saves them. They take as much memory
  /// as the model with all its tables and slots, and twice that while they are saved.
  std::string directory = {};
};

// snippet: tests/docs/reference_training_test.cpp EarlyStopping
// snippet: tests/docs/reference_training_test.cpp EarlyStopping_loop
/// Stops when a logged number no longer improves. NaN never counts as an
/// improvement.
///
/// On several ranks, all ranks have the same loss and metrics. If a callback logs another
/// value on each rank and `restore_best` is set, the value of rank 0 decides. If it is not
/// set, all ranks stop with the first rank that stops.
///
///   const auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{
///       .monitor = "loss", .patience = 2, .restore_best = model});
///   const History history =
///       fit(batches, step, {.epochs = 5, .callbacks = {stopping}});
///
/// Errors:  c10::ValueError for a monitor that is not logged, listing the names; when
///          neither the options nor the metric say which values are better; and when
///          the directory does not hold the best weights that a resumed or ended
///          training needs.
///
/// It also works without fit(), in your own loop, which then saves the weights itself:
///
///   EarlyStopping stopping({.patience = 2, .better = Better::kLower});
///   for (int64_t epoch = 0; epoch < 10 && !stopping.is_done(); ++epoch) {
///     const double loss = train_epoch();
///     if (stopping.update(epoch, loss)) {
///       save_weights(*model, "run/best");
///     }
///   }
///
/// Source:  keras.callbacks.EarlyStopping.
class EarlyStopping : public Callback {
 public:
  /// Errors:  c10::ValueError for options.
  explicit EarlyStopping(EarlyStoppingOptions options);
  ~EarlyStopping() override;

  std::string directory() const override {
    return options_.directory;
  }
  /// Counted from 0; -1 before the first value that is not NaN.
  int64_t best_epoch() const {
    return best_epoch_;
  }
  double best() const {
    return best_;
  }
  /// Whether `patience` epochs have passed without improvement.
  bool is_done() const;

  /// Takes the monitored value of epoch `epoch` >= 0. Returns whether the value is an
  /// improvement, see EarlyStoppingOptions::min_delta.
  /// Errors:  c10::ValueError while it is unknown which values are better.
  bool update(int64_t epoch, double value);

  void on_train_begin(Training& training) override;
  // If the checkpoint was saved after the stop, the resumed training stops again.
  void on_epoch_begin(Training& training) override {
    stop_if_done(training);
  }
  void on_epoch_end(Training& training) override;
  /// Restores the weights of the best epoch, and tells Training::set_restored().
  void on_last_step(Training& training) override;
  std::string state_name() const override {
    return "EarlyStopping " + options_.monitor;
  }
  void save_state(torch::serialize::OutputArchive& archive) const override;
  void load_state(torch::serialize::InputArchive& archive) override;

 private:
  void check_better() const;
  History::Restored best_record() const {
    return {.epoch = best_epoch_, .monitor = options_.monitor, .value = best_};
  }
  void stop_if_done(Training& training) const;
  void keep_best(const Training& training);

  EarlyStoppingOptions options_;
  Better better_ = Better::kUnknown;
  int64_t best_epoch_ = -1;
  double best_ = 0.0;
  int64_t waited_ = 0;
  std::string best_weights_;  // an archive
};

}  // namespace tessera::training
