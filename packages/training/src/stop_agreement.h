// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/training/src/training_state.h"

#include <tessera/training/stop_signal.h>

#include <optional>

namespace tessera::training {

/// Decides when a training stops: after a signal, and on all ranks when one rank stops.
class StopAgreement {
 public:
  /// The failures of callbacks at the end of an epoch, on this rank or on any.
  struct EpochFailure {
    bool has_failed = false;
    /// A callback with Callback::has_epoch_state() failed, so the state may lack the epoch.
    bool has_lost_state = false;
  };

  explicit StopAgreement(TrainingState& state);

  /// SIGINT and SIGTERM stop the training after this call.
  void install_signal_handlers();
  /// Stops the training if there was a signal.
  void check_signal();

  /// Stops if another rank stops. Collective.
  void agree();
  /// Stops if another rank stops, and finds whether the last loss is finite on all ranks.
  /// Collective.
  void agree_on_step();
  /// Stops if another rank stops or a callback failed on any rank. Returns the failures
  /// of all ranks. Collective.
  EpochFailure agree_on_epoch(const EpochFailure& own);

 private:
  void stop_if_any(bool is_any_stopping);

  TrainingState& state_;
  Training training_;
  std::optional<StopSignal> signal_;
};

}  // namespace tessera::training
