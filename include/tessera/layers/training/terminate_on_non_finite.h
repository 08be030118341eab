// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/callback.h>

namespace tessera::training {

/// Stops after a step whose loss is NaN or infinite. The reason has the number of the
/// step and the loss. A step of make_train_step() has not changed the model then; your
/// own step function may have.
/// Source:  keras.callbacks.TerminateOnNaN, which stops after the update.
class TerminateOnNonFinite : public Callback {
 public:
  void on_step_end(Training& training) override;
};

}  // namespace tessera::training
