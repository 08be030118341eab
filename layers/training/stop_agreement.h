// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/training/training_state.h"

#include <tessera/layers/training/stop_signal.h>

#include <optional>

namespace tessera::training {

/// Decides when a training stops: after a signal, and on all ranks with the first one
/// that stops.
class StopAgreement {
 public:
  /// What the ranks agree on at the end of an epoch.
  struct EpochFailure {
    bool has_failed = false;
    /// A callback that has a state failed, so the state may lack the epoch.
    bool has_lost_state = false;
  };

  explicit StopAgreement(TrainingState& state);

  /// From now on SIGINT and SIGTERM stop the training.
  void watch_signals();
  void notice_signal();

  /// Stops where another rank stops. Collective.
  void agree();
  /// The same after a step. It also finds whether the loss is finite on all ranks.
  /// Collective.
  void agree_on_step();
  /// Stops where the end of the epoch failed on any rank, and returns what failed on any.
  /// Collective.
  EpochFailure agree_on_epoch(const EpochFailure& own);

 private:
  void stop_with_others(bool is_any_stopping);

  TrainingState& state_;
  Training training_;
  std::optional<StopSignal> signal_;
};

}  // namespace tessera::training
