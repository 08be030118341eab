// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <tessera/training/callback.h>
#include <tessera/training/history.h>
#include <tessera/training/pointers.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::training {

/// What a TensorBoard callback writes, and where.
struct TensorBoardOptions {
  /// The folder of the logs. It is created if it does not exist.
  std::string directory = {};
  /// Every n-th step is logged. 0: only epochs.
  int64_t every_steps = 10;
  /// Returns further values of each logged step, for example learning_rates(). It is also
  /// called once before the training starts, to check the names.
  std::function<Logs()> step_values = {};
  /// The model whose histograms are written. Unset: no histograms.
  ModelPointer histograms_of = {};
  /// Histograms are written at the end of every n-th epoch, >= 1. Each time, all rows of
  /// the tables are read.
  int64_t histogram_epochs = 1;
  /// After a step, values of steps are written to the file if this many seconds have
  /// passed since the last time, >= 0. Values of an epoch are written when the epoch
  /// ends.
  double flush_seconds = 30.0;
};

// snippet: tests/docs/reference_tensorboard_test.cpp TensorBoard
/// Writes the training to event files, which `tensorboard --logdir DIRECTORY` shows.
///
///   const auto board = std::make_shared<TensorBoard>(TensorBoardOptions{
///       .directory = "run/logs",
///       .every_steps = 2,
///       .step_values = [&] { return learning_rates(optimizer, {embedding}); },
///       .histograms_of = model});
///   fit(batches, step, {.epochs = 3, .callbacks = {board}});
///
/// The runs `train` and `validation` have the same tags, so that TensorBoard draws both
/// curves in one chart. The step of every value is the number of training steps so far.
///
///   epoch/<name>               the logs of an epoch, without the prefix "val_"
///   step/loss                  the mean since the step that was logged before
///   step/<name>                cheap metrics of the epoch so far, and step_values
///   row_norms/<layer>/<table>  Euclidean norms of the rows of a table
///   gradients/<parameter>      its gradient in the last step of the epoch
///   non_finite/<tag>           how many values of the histogram <tag> are left out,
///                              because they are NaN or infinite
///
/// Tables on Strategy::fused() and on sharded strategies have no gradients after
/// backward(), so only those on host() and padded() have histograms of gradients.
///
/// A resumed training continues in a new file. TensorBoard then discards what earlier
/// files have after the checkpoint, and shows what an uninterrupted training has logged.
/// A process that dies loses only values of the last flush_seconds, and none from before
/// the last checkpoint. If the disk is full, values of steps are kept in memory, and fit()
/// raises the error after it has saved the epoch.
///
/// With a sharded strategy, only rank 0 writes. Pass the callback on all ranks: with
/// histograms_of, all ranks read the rows together.
/// Errors:  before the training starts, c10::ValueError for options and for names that
///          are empty, logged twice or not UTF-8, and c10::Error naming the path if the
///          folder can't be written to.
/// Source:  keras.callbacks.TensorBoard.
class TensorBoard : public Callback {
 public:
  /// Errors:  c10::ValueError for options.
  explicit TensorBoard(TensorBoardOptions options);
  ~TensorBoard() override;

  void on_train_begin(Training& training) override;
  void on_epoch_begin(Training& training) override;
  void on_step_end(Training& training) override;
  void on_epoch_end(Training& training) override;
  void on_train_end(Training& training) override;
  std::string state_name() const override {
    return "TensorBoard";
  }
  bool has_epoch_state() const override {
    return false;
  }
  /// Also writes the values so far to the files, so that they have all that the checkpoint
  /// counts as logged.
  void save_state(torch::serialize::OutputArchive& archive) const override;
  void load_state(torch::serialize::InputArchive& archive) override;

 private:
  struct Files;
  struct Histograms;
  using Gradients = std::vector<std::pair<std::string, at::Tensor>>;

  void write_step(Training& training, Files& files);
  Gradients gradients() const;
  Histograms make_histograms(int64_t step) const;

  TensorBoardOptions options_;
  /// fit() owns the files, so that they are closed when it ends.
  std::weak_ptr<Files> files_;
  std::chrono::steady_clock::time_point flushed_ = {};
  double loss_sum_ = 0.0;  // since the last step that was logged
  int64_t loss_steps_ = 0;
  History::Record last_step_ = {};  // the last step that was logged
  int64_t step_ = 0;  // the steps done
  int64_t loaded_step_ = -1;  // step_ of the loaded state; -1: there is none
  Gradients loaded_gradients_ = {};  // of loaded_step_
};

}  // namespace tessera::training
