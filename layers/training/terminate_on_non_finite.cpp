// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/terminate_on_non_finite.h>

#include <fmt/format.h>

#include <cmath>

namespace tessera::training {

void TerminateOnNonFinite::on_step_end(Training& training) {
  // With sharded tables, the loss may be non-finite on another rank only.
  if (!std::isfinite(training.loss()) || training.is_skipped()) {
    training.stop(fmt::format(
        "the loss of step {} is {}{}",
        training.progress().step,
        std::isnan(training.loss()) ? std::abs(training.loss())  // not -nan
                                    : training.loss(),
        training.is_skipped() ? ", so its update was skipped" : ""));
  }
}

}  // namespace tessera::training
