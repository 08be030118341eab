// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp Adam
/// Adam. The defaults are those of the TPU: lazy and without bias correction.
///
///   momentum  = beta_1 * momentum + (1 - beta_1) * gradient
///   velocity  = beta_2 * velocity + (1 - beta_2) * gradient^2
///   weight   -= learning_rate * momentum / sqrt(velocity + epsilon^2)
///
/// With sum_inside_sqrt = false, the denominator is sqrt(velocity) + epsilon.
/// With bias_correction, the learning rate is multiplied by
/// sqrt(1 - beta_2^t) / (1 - beta_1^t), where t = 1, 2, ... counts the table's updates.
/// With amsgrad, the denominator uses the largest velocity so far.
///
///   // Corrects the bias, as Keras and torch::optim do.
///   TPUEmbedding embedding(
///       features, Adam{.learning_rate = 0.001, .bias_correction = true});
///
/// Slots:   momenta and velocities, with amsgrad also max_velocities; all start at 0.
/// Range:   beta_1, beta_2 in [0, 1), epsilon > 0.
/// Source:  tf.tpu.experimental.embedding.Adam; Kingma and Ba 2014.
/// Differs: torch::optim::Adam and Keras correct the bias of both moments and update
///          every row. torch::optim::Adam adds epsilon after it has corrected the
///          velocity.
struct Adam {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool lazy_adam = true;
  bool sum_inside_sqrt = true;
  bool bias_correction = false;
  bool amsgrad = false;
  TESSERA_COMMON_OPTIONS;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      Adam,
      learning_rate,
      beta_1,
      beta_2,
      epsilon,
      lazy_adam,
      sum_inside_sqrt,
      bias_correction,
      amsgrad)
};

}  // namespace tessera::optim
