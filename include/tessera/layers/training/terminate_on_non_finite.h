// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/callback.h>

namespace tessera::training {

/// Stops after a step whose loss is NaN or infinite, with the number of the step
/// and the loss as the reason. With make_train_step() that step has changed
/// nothing; a step of one's own may have.
/// Source:  keras.callbacks.TerminateOnNaN, which stops after the update.
class TerminateOnNonFinite : public Callback {
 public:
  void on_step_end(Training& training) override;
};

}  // namespace tessera::training
