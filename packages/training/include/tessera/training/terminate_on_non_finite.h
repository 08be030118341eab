// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/callback.h>

namespace tessera::training {

// snippet: tests/docs/reference_training_test.cpp TerminateOnNonFinite
/// Stops after a step whose loss is NaN or infinite. The reason has the number of the
/// step and the loss. A step of make_train_step() has not changed the model then. In your
/// own step function, the gradients of such a loss are an error already, unless
/// FitOptions::non_finite_gradients is kApply.
///
///   const auto terminate = std::make_shared<TerminateOnNonFinite>();
///   const History history =
///       fit(batches, step, {.epochs = 10, .callbacks = {terminate}});
///   std::cout << history.stop_reason << "\n";
///
/// Source:  keras.callbacks.TerminateOnNaN, which stops after the update.
class TerminateOnNonFinite : public Callback {
 public:
  void on_step_end(Training& training) override;
};

}  // namespace tessera::training
