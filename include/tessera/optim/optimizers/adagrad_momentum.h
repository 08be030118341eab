// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp AdagradMomentum
/// Adagrad with momentum over the scaled gradient and a configurable exponent.
///
///   beta2 = 1:  accumulator += gradient^2
///   beta2 < 1:  accumulator  = beta2 * accumulator + (1 - beta2) * gradient^2
///   scaled      = gradient / (accumulator + epsilon)^(1 / exponent)
///   momenta     = momentum * momenta + scaled
///   weight     -= learning_rate * momenta
///
/// With use_nesterov, weight -= learning_rate * (momentum * momenta + scaled).
///
///   // The accumulator is a moving average, so steps do not vanish.
///   TPUEmbedding embedding(
///       features,
///       AdagradMomentum{.learning_rate = 0.01, .momentum = 0.9, .beta2 = 0.99});
///
/// Slots:   accumulators and momenta; both start at 0.
/// Range:   momentum, beta2 in [0, 1], exponent > 0, epsilon > 0.
/// Source:  tf.tpu.experimental.embedding.AdagradMomentum.
struct AdagradMomentum {
  LearningRate learning_rate = 0.001;
  double momentum = 0.0;
  bool use_nesterov = false;
  double exponent = 2.0;
  double beta2 = 1.0;
  double epsilon = 1e-10;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      AdagradMomentum,
      learning_rate,
      momentum,
      use_nesterov,
      exponent,
      beta2,
      epsilon)
};

}  // namespace tessera::optim
