// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp Nadam
/// Nadam. It is Adam with Nesterov momentum; its momentum factor mu(t) grows to beta_1.
///
///   momentum  = beta_1 * momentum + (1 - beta_1) * gradient
///   velocity  = beta_2 * velocity + (1 - beta_2) * gradient^2
///   mu(t)     = beta_1 * (1 - 0.5 * 0.96^(schedule_decay * t))
///   direction = mu(t + 1) / (1 - mu(1) * ... * mu(t + 1)) * momentum
///               + (1 - mu(t)) / (1 - mu(1) * ... * mu(t)) * gradient
///   weight   -= learning_rate * direction
///               / (sqrt(velocity / (1 - beta_2^t)) + epsilon)
///
/// t = 1, 2, ... counts the table's updates. mu needs no slot.
///
///   // The schedule_decay of torch.optim.NAdam.
///   TPUEmbedding embedding(
///       features, Nadam{.learning_rate = 0.01, .schedule_decay = 0.004});
///
/// Slots:   momenta and velocities; both start at 0.
/// Range:   beta_1, beta_2 in [0, 1), epsilon > 0, schedule_decay >= 0.
/// Source:  keras.optimizers.Nadam; Dozat 2016.
/// Differs: the default of schedule_decay is 1, as in Keras 3. It is 0.004 in
///          torch.optim.NAdam of Python and in legacy Keras.
struct Nadam {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  double schedule_decay = 1.0;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      Nadam,
      learning_rate,
      beta_1,
      beta_2,
      epsilon,
      schedule_decay)
};

}  // namespace tessera::optim
