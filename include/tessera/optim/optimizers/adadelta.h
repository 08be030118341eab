// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp Adadelta
/// Adadelta. The root mean square of past updates sets the step size.
///
///   accumulator = rho * accumulator + (1 - rho) * gradient^2
///   delta       = gradient * sqrt((update + epsilon) / (accumulator + epsilon))
///   update      = rho * update + (1 - rho) * delta^2
///   weight     -= learning_rate * delta
///
///   // The learning rate of the paper.
///   TPUEmbedding embedding(features, Adadelta{.learning_rate = 1.0});
///
/// Slots:   accumulators and updates; both start at 0.
/// Range:   rho in [0, 1], epsilon > 0.
/// Source:  keras.optimizers.Adadelta; Zeiler 2012.
struct Adadelta {
  LearningRate learning_rate = 0.001;
  double rho = 0.95;
  double epsilon = 1e-7;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(Adadelta, learning_rate, rho, epsilon)
};

}  // namespace tessera::optim
