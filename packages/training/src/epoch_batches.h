// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/training/src/training_state.h"
#include "src/common/check.h"

#include <tessera/training/batch_source.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace tessera::training {

/// Runs steps over the batches of each epoch. A resumed epoch continues after the batches
/// that were trained on before the checkpoint.
class EpochBatches {
 public:
  EpochBatches(
      std::shared_ptr<Pass> pass,
      std::optional<int64_t> steps_per_epoch,
      TrainingState& state)
      : pass_(std::move(pass)),
        steps_per_epoch_(steps_per_epoch),
        state_(state) {}

  /// Opens the source and skips the batches before the resumed step. A new epoch starts
  /// with empty metrics.
  /// Errors:  c10::ValueError if the source has too few batches.
  void open() {
    Progress& progress = state_.progress;
    first_step_ = progress.step_in_epoch;
    has_ended_ = false;
    const bool is_resumed = first_step_ > 0;
    if (is_resumed) {
      // Lets the source shuffle its batches as it did before the checkpoint.
      restore_generator(state_, state_.epoch_generator);
    } else {
      start_epoch();
    }
    pass_->begin(progress.epoch);
    size_ = pass_->size();
    check_size();
    if (!steps_per_epoch_ && size_) {
      progress.steps_per_epoch = size_;
    }
    if (is_resumed) {
      check_same_data(size_.value_or(first_step_));
      check_same_data(pass_->skip(first_step_));
      restore_generator(state_, state_.loaded_generator);
    }
  }

  /// Runs the step on the next batch. Returns nullopt at the end of the epoch.
  std::optional<StepResult> next() {
    if (steps_per_epoch_ &&
        state_.progress.step_in_epoch >= *steps_per_epoch_) {
      return std::nullopt;
    }
    std::optional<StepResult> result = pass_->step();
    has_ended_ = !result;
    return result;
  }

  void close() {
    pass_->end();
  }

  /// Closes an epoch before its first step, so that it can be opened again.
  void close_unread() {
    close();
    if (state_.progress.step_in_epoch == 0) {
      restore_generator(state_, state_.epoch_generator);
    }
  }

  /// Checks an epoch that was read to its end.
  /// Errors:  c10::ValueError if it had no batch, or too few.
  void check_complete() const {
    const Progress& progress = state_.progress;
    TESSERA_CHECK_VALUE(
        first_step_ == 0 || progress.step_in_epoch > first_step_ ||
            !has_ended_ || size_.value_or(first_step_) <= first_step_,
        "[fit] epoch {} was resumed after {} of {} batches, but the source gave no more batches. Resume with the same data.",
        progress.epoch,
        first_step_,
        size_.value_or(0));
    TESSERA_CHECK_VALUE(
        progress.step_in_epoch > 0,
        "[fit] epoch {} has no batch. Pass a source that can be read again in each epoch, or a function that opens it.",
        progress.epoch);
    TESSERA_CHECK_VALUE(
        !has_ended_ || !steps_per_epoch_,
        "[fit] steps_per_epoch is {}, but the source gave {} batches in epoch {}. Lower steps_per_epoch, or leave it unset.",
        steps_per_epoch_.value_or(0),
        progress.step_in_epoch,
        progress.epoch);
  }

 private:
  void start_epoch() {
    state_.epoch_generator = generator_state();
    state_.loss_mean = {};
    for (const auto& metric : state_.metrics) {
      metric->reset();
    }
  }

  void check_size() const {
    TESSERA_CHECK_VALUE(
        !steps_per_epoch_ || !size_ || *size_ >= *steps_per_epoch_,
        "[fit] steps_per_epoch is {}, but epoch {} has {} batches. Lower steps_per_epoch, or leave it unset.",
        steps_per_epoch_.value_or(0),
        state_.progress.epoch,
        size_.value_or(0));
  }

  // Raises an error if the source, which has at most `found` batches, is too short for the
  // resumed epoch.
  void check_same_data(int64_t found) const {
    TESSERA_CHECK_VALUE(
        found >= first_step_,
        "[fit] the checkpoint was saved after {} batches of epoch {}, but the source has no more than {}. Resume with the same data.",
        first_step_,
        state_.progress.epoch,
        found);
  }

  std::shared_ptr<Pass> pass_;
  std::optional<int64_t> steps_per_epoch_;
  TrainingState& state_;
  std::optional<int64_t> size_;  // batches in the epoch, if the source knows it
  int64_t first_step_ = 0;  // > 0 in a resumed epoch
  bool has_ended_ = false;  // the source has no more batches
};

}  // namespace tessera::training
