// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/terminate_on_non_finite.h>

#include "src/common/tensor_text.h"

#include <fmt/format.h>

#include <cmath>

namespace tessera::training {

void TerminateOnNonFinite::on_step_end(Training& training) {
  // With sharded tables, the loss may be non-finite on another rank only.
  if (!std::isfinite(training.loss()) || training.is_skipped()) {
    training.stop(fmt::format(
        "the loss of step {} is {}{}",
        training.progress().step,
        number_in_message(training.loss()),
        training.is_skipped() ? ", so its update was skipped" : ""));
  }
}

}  // namespace tessera::training
