// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>
#include <tessera/layers/training/callback.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera::training {

/// When a Checkpoint saves, how many stay, and whether it resumes.
struct TrainingCheckpointOptions {
  enum class Resume {
    /// Where the directory has a checkpoint.
    kIfThere,
    /// An error where it has none.
    kRequired,
    /// An error where it has one.
    kNever
  };

  /// Saves after every n-th step, counted over epochs; 0: not within epochs.
  int64_t every_steps = 0;
  /// Saves after every n-th epoch, and the last; 0: never.
  int64_t every_epochs = 1;
  Resume resume = Resume::kIfThere;
  /// As CheckpointOptions, of models with tables.
  int64_t keep_last = 2;
  int64_t full_every = 1;
};
static_assert(std::is_aggregate_v<TrainingCheckpointOptions>);

/// Saves a training and resumes it, also in the middle of an epoch: tables with
/// their slots, dense weights and buffers, the optimizer, the history, the state of
/// metrics and callbacks, and LibTorch's random numbers, all in one checkpoint
/// that counts when it is whole.
///
///   fit(batches, step, {.epochs = 10, .checkpoint = std::make_shared<Checkpoint>(
///       "run/checkpoints", model.ptr(), optimizer,
///       TrainingCheckpointOptions{.every_steps = 1000})});
///
/// A resumed training gives what an uninterrupted one gives, bit for bit, when
/// epoch e of the source has the same batches again: random ones from LibTorch's
/// generator, which is set back, or from the epoch's number. Batches before the
/// step that was saved are skipped. Saves when fit() stops early, too, unless the
/// last loss is not finite.
///
/// A checkpoint that is refused leaves the model as it is. Until fit() ends, another
/// process's training with the same directory is refused, by a lock on the file
/// `.training_lock`, which stays there. Within one process nothing is refused.
///
/// A model with TPUEmbedding layers goes through their save_checkpoint(), any
/// other into one file. On shards all ranks give one, for a directory that all of
/// them see. Rank 0 alone saves dense weights, the optimizer, layers that are not
/// sharded, and the state of metrics and callbacks; each rank resumes with these.
/// So there, bit for bit holds for tables, dense weights and optimizer as long as
/// nothing draws random numbers (they are not set back); in an epoch that is
/// resumed in its middle, loss and metrics of the other ranks go on from rank 0's.
/// It saves unless the last loss is not finite on some rank.
/// Errors:  c10::ValueError for options, or where the directory's checkpoint is of
///          another model or training; c10::Error naming the path for files, and
///          for a directory in use.
class Checkpoint {
 public:
  /// `optimizer` must outlive it.
  Checkpoint(
      std::string directory,
      std::shared_ptr<torch::nn::Module> model,
      torch::optim::Optimizer& optimizer,
      TrainingCheckpointOptions options = {});

  const std::string& directory() const {
    return directory_;
  }

  /// fit() calls these after those of its callbacks.
  void on_train_begin(Training& training);
  void on_step_end(Training& training);
  void on_epoch_end(Training& training);

  /// What fit() calls before the first epoch: lock(), whose result keeps other
  /// processes out as long as it lives, and resume(). Of several locks that a process
  /// has on a directory, the first that goes ends all.
  [[nodiscard]] std::shared_ptr<void> lock(Training& training) const;
  void resume(Training& training);
  void save(Training& training);

 private:
  std::string directory_;
  std::shared_ptr<torch::nn::Module> model_;
  torch::optim::Optimizer& optimizer_;
  TrainingCheckpointOptions options_;
};

/// What a Checkpoint saves of the model, for a loop of one's own: tables with their
/// slots, dense weights, buffers. `options` as in TPUEmbedding::save_checkpoint(),
/// of models with tables; `extra` of all, for the optimizer and the loop's own state,
/// under other names than "dense", "dense_names" and "layers". With tables on shards
/// all ranks call it, otherwise one.
/// Errors:  c10::ValueError for an empty path; c10::Error naming the path for files.
void save_weights(
    torch::nn::Module& model,
    const std::string& directory,
    CheckpointOptions options = {});

/// Whether load_weights() would find a checkpoint. With tables on shards all ranks
/// call it.
bool has_weights(torch::nn::Module& model, const std::string& directory);

/// The weights of the newest checkpoint that save_weights(), a Checkpoint, or an
/// EarlyStopping with a directory, has saved. `extra` reads what else is in it, before
/// anything is changed: what it throws leaves the model as it is. With tables on
/// shards all ranks call it, and all run `extra`.
/// Errors:  c10::ValueError when there is none, or it is of another model.
void load_weights(
    torch::nn::Module& model,
    const std::string& directory,
    const std::function<void(torch::serialize::InputArchive&)>& extra = {});

}  // namespace tessera::training
