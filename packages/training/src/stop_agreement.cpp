// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/stop_agreement.h"

#include "packages/training/src/ranks.h"

#include <cmath>
#include <vector>

namespace tessera::training {

StopAgreement::StopAgreement(TrainingState& state)
    : state_(state), training_(state) {}

void StopAgreement::install_signal_handlers() {
  signal_.emplace();
}

void StopAgreement::check_signal() {
  // A signal that comes after a stop for another reason is not read. The destructor of
  // StopSignal then raises it again for the previous handler.
  const char* name = signal_ && !state_.is_stopping ? signal_->name() : nullptr;
  if (name != nullptr) {
    training_.stop(name);
    state_.is_stopped_by_signal = true;
  }
}

void StopAgreement::agree() {
  stop_if_any(on_any_rank(state_.is_stopping, state_.strategy));
}

// Ranks also agree on whether the loss is finite, because all of them must decide alike
// whether the Checkpoint saves. A skipped step that is allowed does not prevent this,
// because it has changed nothing.
void StopAgreement::agree_on_step() {
  const bool is_bad = !std::isfinite(state_.loss) && !state_.is_skip_allowed;
  const std::vector<bool> agreed =
      on_any_rank({state_.is_stopping, is_bad}, state_.strategy);
  stop_if_any(agreed[0]);
  state_.is_loss_finite = !agreed[1];
}

StopAgreement::EpochFailure StopAgreement::agree_on_epoch(
    const EpochFailure& own) {
  state_.is_stopping = state_.is_stopping || own.has_failed;
  const std::vector<bool> agreed = on_any_rank(
      {state_.is_stopping, own.has_lost_state, own.has_failed},
      state_.strategy);
  stop_if_any(agreed[0]);
  return {.has_failed = agreed[2], .has_lost_state = agreed[1]};
}

void StopAgreement::stop_if_any(bool is_any_stopping) {
  if (is_any_stopping) {
    // If this rank has a reason, stop() keeps it.
    training_.stop("another rank");
  }
}

}  // namespace tessera::training
