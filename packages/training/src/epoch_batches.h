// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/training/src/training_state.h"

#include <tessera/training/batch_source.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace tessera::training {

/// Runs steps over the batches of each epoch. A resumed epoch continues after the batches
/// that were trained on before the checkpoint.
class EpochBatches {
 public:
  EpochBatches(
      std::shared_ptr<Pass> pass,
      std::optional<int64_t> steps_per_epoch,
      TrainingState& state);

  /// Opens the source and skips the batches before the resumed step. A new epoch starts
  /// with empty metrics.
  /// Errors:  c10::ValueError if the source has too few batches.
  void open();
  /// Runs the step on the next batch. Returns nullopt at the end of the epoch.
  std::optional<StepResult> next();
  void close();
  /// Closes an epoch before its first step, so that it can be opened again.
  void close_unread();
  /// Checks an epoch that was read to its end.
  /// Errors:  c10::ValueError if it had no batch, or too few.
  void check_complete() const;

 private:
  void start_epoch();
  void check_size() const;
  void check_same_data(int64_t found) const;

  std::shared_ptr<Pass> pass_;
  std::optional<int64_t> steps_per_epoch_;
  TrainingState& state_;
  std::optional<int64_t> size_;  // batches in the epoch, if the source knows it
  int64_t first_step_ = 0;  // > 0 in a resumed epoch
  bool has_ended_ = false;  // the source has no more batches
};

}  // namespace tessera::training
