// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/training/src/ranks.h"
#include "packages/training/src/training_state.h"

#include <tessera/training/stop_signal.h>

#include <cmath>
#include <optional>
#include <vector>

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

  explicit StopAgreement(TrainingState& state)
      : state_(state), training_(state) {}

  /// SIGINT and SIGTERM stop the training after this call.
  void install_signal_handlers() {
    signal_.emplace();
  }

  /// Stops the training if there was a signal.
  void check_signal() {
    // A signal that comes after a stop for another reason is not read. The destructor of
    // StopSignal then raises it again for the previous handler.
    const char* name =
        signal_ && !state_.is_stopping ? signal_->name() : nullptr;
    if (name != nullptr) {
      training_.stop(name);
      state_.is_stopped_by_signal = true;
    }
  }

  /// Stops if another rank stops. Collective.
  void agree() {
    stop_if_any(on_any_rank(state_.is_stopping, state_.strategy));
  }

  /// Stops if another rank stops, and finds whether the last loss is finite on all ranks,
  /// because all of them must decide alike whether the Checkpoint saves. A skipped step
  /// that is allowed does not prevent this, because it has changed nothing. Collective.
  void agree_on_step() {
    const bool is_bad = !std::isfinite(state_.loss) && !state_.is_skip_allowed;
    const std::vector<bool> agreed =
        on_any_rank({state_.is_stopping, is_bad}, state_.strategy);
    stop_if_any(agreed[0]);
    state_.is_loss_finite = !agreed[1];
  }

  /// Stops if another rank stops or a callback failed on any rank. Returns the failures
  /// of all ranks. Collective.
  EpochFailure agree_on_epoch(const EpochFailure& own) {
    state_.is_stopping = state_.is_stopping || own.has_failed;
    const std::vector<bool> agreed = on_any_rank(
        {state_.is_stopping, own.has_lost_state, own.has_failed},
        state_.strategy);
    stop_if_any(agreed[0]);
    return {.has_failed = agreed[2], .has_lost_state = agreed[1]};
  }

 private:
  void stop_if_any(bool is_any_stopping) {
    if (is_any_stopping) {
      // If this rank has a reason, stop() keeps it.
      training_.stop("another rank");
    }
  }

  TrainingState& state_;
  Training training_;
  std::optional<StopSignal> signal_;
};

}  // namespace tessera::training
