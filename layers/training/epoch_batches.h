// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/training/training_state.h"

#include <tessera/layers/training/batch_source.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace tessera::training {

/// Steps over the batches of one epoch after another. An epoch that is resumed goes on
/// behind the batches that its checkpoint has seen.
class EpochBatches {
 public:
  EpochBatches(
      std::shared_ptr<Pass> pass,
      std::optional<int64_t> steps_per_epoch,
      TrainingState& state);

  /// Opens the source where the epoch is to go on. A new epoch starts with empty metrics.
  /// Errors:  c10::ValueError when the source has fewer batches than it must have.
  void open();
  /// A step over the next batch. Nothing at the end of the epoch.
  std::optional<StepResult> next();
  void close();
  /// Closes an epoch before its first step, so that it can be opened once more.
  void close_unread();
  /// Checks an epoch that was read to its end.
  /// Errors:  c10::ValueError when it had no batch, or too few.
  void check_complete() const;

 private:
  void start_epoch();
  void check_size() const;
  void refuse_other_data(int64_t found) const;

  std::shared_ptr<Pass> pass_;
  std::optional<int64_t> steps_per_epoch_;
  TrainingState& state_;
  std::optional<int64_t> size_;  // of the epoch, where the source knows it
  int64_t first_step_ = 0;  // more than 0 in an epoch that is resumed
  bool has_ended_ = false;  // the source has no more batches
};

}  // namespace tessera::training
