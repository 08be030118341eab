// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/checkpoint.h>

#include <tessera/common/profile_scope.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "packages/training/src/model_files.h"
#include "src/common/check.h"

#include <utility>

namespace tessera::training {

namespace {

using Resume = TrainingCheckpointOptions::Resume;

constexpr const char* kCheckpoint = "[Checkpoint]";

bool is_enumerator(Resume resume) {
  return resume == Resume::kIfThere || resume == Resume::kRequired ||
      resume == Resume::kNever;
}

// Raises an error if a checkpoint is required, but there is none.
void check_required(
    Resume resume,
    bool is_there,
    const std::string& directory) {
  TESSERA_CHECK_VALUE(
      resume != Resume::kRequired || is_there,
      "[Checkpoint] '{}' has no checkpoint to resume from. Correct the directory, or set Resume::kIfThere to start a new training.",
      directory);
}

// LibTorch's optimizers fail with an assertion if the state is of another class. This
// function replaces it by an error that names the directory.
void load_optimizer(
    torch::optim::Optimizer& optimizer,
    torch::serialize::InputArchive& archive,
    const std::string& directory) {
  try {
    optimizer.load(archive);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error&) {
    TESSERA_CHECK_VALUE(
        false,
        "[Checkpoint] '{}' has the state of another optimizer than the one that was given. Pass the optimizer that was saved, or choose another directory.",
        directory);
  }
}

}  // namespace

Checkpoint::Checkpoint(
    std::string directory,
    ModelPointer model,
    torch::optim::Optimizer& optimizer,
    TrainingCheckpointOptions options)
    : directory_(std::move(directory)),
      model_(std::move(model)),
      optimizer_(optimizer),
      options_(options) {
  check_directory(directory_, kCheckpoint);
  TESSERA_CHECK_VALUE(
      model_ != nullptr,
      "[Checkpoint] expected a model, but got nullptr. Pass the model that is trained.");
  TESSERA_CHECK_VALUE(
      options_.every_steps >= 0 && options_.every_epochs >= 0,
      "[Checkpoint] every_steps and every_epochs must be >= 0, but got {} and {}. Set the one that should not save to 0.",
      options_.every_steps,
      options_.every_epochs);
  TESSERA_CHECK_VALUE(
      options_.keep_last >= 1 && options_.full_every >= 1,
      "[Checkpoint] keep_last and full_every must be >= 1, but got {} and {}. Correct the options.",
      options_.keep_last,
      options_.full_every);
  TESSERA_CHECK_VALUE(
      is_enumerator(options_.resume),
      "[Checkpoint] resume must be kIfThere, kRequired or kNever, but got {}. Use an enumerator of Resume.",
      static_cast<int>(options_.resume));
}

void Checkpoint::on_train_begin(Training& training) {
  // Checked first, because check_model_directory() makes the directory.
  if (options_.resume == Resume::kRequired) {
    const Ranks ranks = ranks_of(*model_, training.strategy());
    check_required(
        options_.resume,
        has_model(*model_, ranks, directory_, kCheckpoint),
        directory_);
  }
  check_model_directory(directory_, kCheckpoint);
}

std::shared_ptr<void> Checkpoint::lock(Training& training) const {
  return lock_for_training(ranks_of(*model_, training.strategy()), directory_);
}

void Checkpoint::resume(Training& training) {
  const ProfileScope scope("tessera::checkpoint");
  const Ranks ranks = ranks_of(*model_, training.strategy());
  if (options_.resume == Resume::kNever) {
    TESSERA_CHECK_VALUE(
        !has_model(*model_, ranks, directory_, kCheckpoint),
        "[Checkpoint] '{}' has a checkpoint already, but Resume::kNever allows none. Choose another directory, or set Resume::kIfThere to resume.",
        directory_);
    return;
  }
  const bool is_there = load_model(
      *model_,
      ranks,
      directory_,
      kCheckpoint,
      [&](torch::serialize::InputArchive& archive) {
        torch::serialize::InputArchive state, optimizer;
        TESSERA_CHECK_VALUE(
            archive.try_read("fit", state) &&
                archive.try_read("optimizer", optimizer),
            "[Checkpoint] '{}' has the weights of a model, but no training to resume. Choose another directory, or call load_weights() with this one.",
            directory_);
        training.load(state);
        load_optimizer(optimizer_, optimizer, directory_);
      });
  // The checkpoint may have been removed since on_train_begin().
  check_required(options_.resume, is_there, directory_);
}

void Checkpoint::save(Training& training) {
  const ProfileScope scope("tessera::checkpoint");
  training.collect();
  save_model(
      *model_,
      ranks_of(*model_, training.strategy()),
      directory_,
      {.keep_last = options_.keep_last,
       .full_every = options_.full_every,
       .extra =
           [&](torch::serialize::OutputArchive& archive) {
             torch::serialize::OutputArchive state(archive.compilation_unit());
             torch::serialize::OutputArchive optimizer(
                 archive.compilation_unit());
             training.save(state);
             optimizer_.save(optimizer);
             archive.write("fit", state);
             archive.write("optimizer", optimizer);
           }},
      kCheckpoint);
}

void Checkpoint::on_step_end(Training& training) {
  const bool is_due = options_.every_steps > 0 &&
      training.progress().step % options_.every_steps == 0;
  if ((is_due || training.is_stopping()) && training.is_loss_finite()) {
    save(training);
  }
}

// fit() has already increased progress.epoch, so it is the number of complete epochs.
void Checkpoint::on_epoch_end(Training& training) {
  const Progress& progress = training.progress();
  const bool is_due = options_.every_epochs > 0 &&
      (progress.epoch % options_.every_epochs == 0 ||
       progress.epoch == progress.epochs);
  if ((is_due || training.is_stopping()) && training.is_loss_finite()) {
    save(training);
  }
}

void save_weights(
    torch::nn::Module& model,
    const std::string& directory,
    CheckpointOptions options) {
  check_directory(directory, "[save_weights]");
  save_model(
      model, ranks_of(model), directory, std::move(options), "[save_weights]");
}

bool has_weights(torch::nn::Module& model, const std::string& directory) {
  check_directory(directory, "[has_weights]");
  return has_model(model, ranks_of(model), directory, "[has_weights]");
}

void load_weights(
    torch::nn::Module& model,
    const std::string& directory,
    const std::function<void(torch::serialize::InputArchive&)>& extra) {
  check_directory(directory, "[load_weights]");
  TESSERA_CHECK_VALUE(
      load_model(model, ranks_of(model), directory, "[load_weights]", extra),
      "[load_weights] '{}' has no checkpoint. Correct the directory. has_weights() tells whether there is one.",
      directory);
}

}  // namespace tessera::training
