// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp ProximalAdagrad
/// Adagrad with an exact proximal step for l1 and l2 regularization.
///
///   accumulator += gradient^2
///   rate         = learning_rate / sqrt(accumulator)
///   moved        = weight - rate * gradient
///   weight       = sign(moved) * max(|moved| - rate * l1, 0) / (1 + rate * l2)
///
/// l1 and l2 are l1_regularization_strength and l2_regularization_strength.
///
///   // Weights whose gradients stay below l1 become exactly zero.
///   TPUEmbedding embedding(
///       features,
///       ProximalAdagrad{.learning_rate = 0.1, .l1_regularization_strength = 3.0});
///
/// Slots:   accumulators, which start at initial_accumulator_value.
/// Range:   initial_accumulator_value > 0, l1, l2 >= 0.
/// Source:  tf.raw_ops.ResourceApplyProximalAdagrad; Duchi and Singer 2009.
struct ProximalAdagrad {
  LearningRate learning_rate = 0.001;
  double initial_accumulator_value = 0.1;
  double l1_regularization_strength = 0.0;
  double l2_regularization_strength = 0.0;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      ProximalAdagrad,
      learning_rate,
      initial_accumulator_value,
      l1_regularization_strength,
      l2_regularization_strength)
};

}  // namespace tessera::optim
