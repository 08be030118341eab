// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/callback.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::training {

/// What an EarlyStopping watches, how patiently, and what it keeps.
struct EarlyStoppingOptions {
  /// A name of the logs.
  std::string monitor = "val_loss";
  /// Epochs without improvement after which training stops; 0 is as 1.
  int64_t patience = 0;
  /// What counts as an improvement is larger than this, >= 0.
  double min_delta = 0.0;
  /// kUnknown: what the monitored metric says.
  Better better = Better::kUnknown;
  /// Ends with the weights of its best epoch, tables and slots too. Unset: with
  /// those of the last.
  std::shared_ptr<torch::nn::Module> restore_best = {};
  /// Where the best weights wait. Empty: in memory, as large as the model with
  /// all its tables and slots, and as much again while they are saved; a
  /// Checkpoint writes them, too. Otherwise a directory: each improvement writes the
  /// model to it, and at the end the weights of just this best epoch must be
  /// there. Tables on shards need one. No other callback's.
  std::string directory = {};
};
static_assert(std::is_aggregate_v<EarlyStoppingOptions>);

/// Stops when a logged number no longer improves. NaN is no improvement.
///
/// On shards rank 0's number counts for all ranks where there is a `restore_best`.
/// Otherwise each rank judges its own, such as the loss of its own batches, and all
/// end with the first that stops.
/// Errors:  c10::ValueError for a monitor that is not logged, listing the names,
///          when nobody says which values are better, and when the directory does
///          not hold the best weights that a resumed or ended training needs.
///
/// Alone, in a loop of one's own, where the weights are the loop's to keep:
///
///   EarlyStopping stopping({.patience = 2, .better = Better::kLower});
///   for (int64_t epoch = 0; epoch < 10 && !stopping.is_done(); ++epoch) {
///     ...
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
  /// From 0; -1 before the first.
  int64_t best_epoch() const {
    return best_epoch_;
  }
  double best() const {
    return best_;
  }
  /// Whether the patience is at its end.
  bool is_done() const;

  /// The number of an epoch >= 0; gives whether it is the best so far.
  /// Errors:  c10::ValueError when nobody has said which values are better.
  bool update(int64_t epoch, double value);

  void on_train_begin(Training& training) override;
  void on_epoch_begin(Training& training) override;
  void on_epoch_end(Training& training) override;
  void on_train_end(Training& training) override;
  std::string state_name() const override;
  void save_state(torch::serialize::OutputArchive& archive) const override;
  void load_state(torch::serialize::InputArchive& archive) override;

 private:
  void check_better() const;
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
