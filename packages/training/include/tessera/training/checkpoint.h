// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>
#include <tessera/training/callback.h>
#include <tessera/training/pointers.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera::training {

/// When a Checkpoint saves, how many checkpoints it keeps, and whether it resumes.
struct TrainingCheckpointOptions {
  enum class Resume {
    /// Resumes if the directory has a checkpoint, and otherwise starts a new training.
    kIfThere,
    /// Raises an error if the directory has no checkpoint.
    kRequired,
    /// Raises an error if the directory has a checkpoint.
    kNever
  };

  /// Saves after every n-th step; the count continues over epochs. 0: not within epochs.
  int64_t every_steps = 0;
  /// Saves after every n-th epoch and after the last one. 0: not at the end of epochs.
  int64_t every_epochs = 1;
  Resume resume = Resume::kIfThere;
  /// `keep_last` and `full_every` are those of CheckpointOptions. They apply to models with
  /// tables.
  int64_t keep_last = 2;
  int64_t full_every = 1;
};

// snippet: tests/docs/reference_training_test.cpp Checkpoint
/// Saves a training and resumes it, also in the middle of an epoch. A checkpoint has the
/// tables with their slots, dense weights and buffers, the optimizer, the history, the
/// state of metrics and callbacks, and LibTorch's random generator. A checkpoint that was
/// not written completely is ignored.
///
///   const auto checkpoint = std::make_shared<Checkpoint>(
///       "run/checkpoints",
///       model,
///       optimizer,
///       TrainingCheckpointOptions{.every_steps = 1000});
///   fit(batches, step, {.epochs = 2, .checkpoint = checkpoint});
///
/// A resumed training gives the same result as an uninterrupted one, bit for bit, if the
/// source gives the same batches for the same epoch. A source that shuffles may use
/// LibTorch's generator, whose state is restored, or the number of the epoch. The batches
/// before the saved step are skipped. A checkpoint is also saved when fit() stops early,
/// unless the last loss is not finite.
///
/// Layers that are not built yet are built for the shapes of the saved model. So a training
/// whose layers were built by its first step resumes like any other. If a checkpoint cannot
/// be loaded, no weight changes. If a checkpoint is of a training that has ended, fit()
/// says that it trained nothing.
///
/// Until fit() ends, another process cannot train with the same directory: a lock on the
/// file `.training_lock` prevents it. The file stays in the directory. Within one process,
/// nothing stops a second fit() with the same directory, but a save of tables is refused
/// while another save writes into the directory. Give each fit() its own directory.
///
/// TPUEmbedding layers and EmbeddingEngineModules are saved by their save_checkpoint(). A
/// model without them is saved in one file.
///
/// With sharded tables, every rank passes a Checkpoint for the same directory, which all
/// ranks must see. Rank 0 alone saves dense weights, the optimizer, layers that are not
/// sharded, and the state of metrics and callbacks. Each rank resumes with these. Random
/// generators are not restored then. So tables, dense weights and optimizer are equal to
/// those of an uninterrupted training, bit for bit, only if nothing draws random numbers.
/// In an epoch that is resumed in its middle, each rank continues its own metrics. With
/// another number of ranks, the metrics of all ranks together are the same. Nothing is saved
/// while the last loss is not finite on some rank.
/// Errors:  c10::ValueError for options, or if the directory's checkpoint is of another
///          model or training; c10::Error naming the path for files, and for a
///          directory in use.
class Checkpoint {
 public:
  /// `optimizer` must outlive the Checkpoint.
  Checkpoint(
      std::string directory,
      ModelPointer model,
      torch::optim::Optimizer& optimizer,
      TrainingCheckpointOptions options = {});

  std::string directory() const {
    return directory_;
  }

  /// fit() calls each of these after the functions of the same name of its callbacks.
  void on_train_begin(Training& training);
  void on_step_end(Training& training);
  void on_epoch_end(Training& training);

  /// fit() calls lock() and then resume() before the first epoch. The result of lock()
  /// excludes other processes as long as it lives. If one process locks a directory more
  /// than once, the first destroyed result ends all of these locks.
  [[nodiscard]] std::shared_ptr<void> lock(Training& training) const;
  void resume(Training& training);
  void save(Training& training);

 private:
  std::string directory_;
  std::shared_ptr<torch::nn::Module> model_;
  torch::optim::Optimizer& optimizer_;
  TrainingCheckpointOptions options_;
};

/// Saves the model as a Checkpoint does, for your own training loop: tables with their
/// slots, dense weights, buffers. The `options` are those of
/// TPUEmbedding::save_checkpoint() and apply to models with tables. `options.extra`
/// applies to every model: it may write the optimizer and the loop's own state, under any
/// names except "dense", "dense_names", "layers", "layer_shapes" and "ends_with_checksum".
/// If tables are sharded, all ranks call this function, otherwise one.
/// Errors:  c10::ValueError for an empty path; c10::Error naming the path for files.
void save_weights(
    torch::nn::Module& model,
    const std::string& directory,
    CheckpointOptions options = {});

/// Whether load_weights() would find a checkpoint. If tables are sharded, all ranks call
/// it.
bool has_weights(torch::nn::Module& model, const std::string& directory);

/// Loads the weights of the newest checkpoint that save_weights(), a Checkpoint, or an
/// EarlyStopping with a directory has saved. It first builds the layers that are not
/// built yet, for the shapes of the saved model. `extra` reads the other entries of the
/// checkpoint before any weight is changed, so the weights stay the same if `extra`
/// throws. If tables are sharded, all ranks call it, and all run `extra`.
/// Errors:  c10::ValueError if there is no checkpoint, or it is of another model.
void load_weights(
    torch::nn::Module& model,
    const std::string& directory,
    const std::function<void(torch::serialize::InputArchive&)>& extra = {});

}  // namespace tessera::training
