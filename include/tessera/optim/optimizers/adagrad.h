// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp Adagrad
/// Adagrad. Each weight has its own step size, which falls as the sum of its squared
/// gradients grows.
///
///   accumulator += gradient^2
///   weight      -= learning_rate * gradient / sqrt(accumulator)
///
/// With an epsilon, the denominator is sqrt(accumulator) + epsilon. With
/// epsilon_inside_sqrt, it is sqrt(accumulator + epsilon).
///
///   // The rows of rare ids keep taking large steps.
///   TPUEmbedding embedding(features, Adagrad{.learning_rate = 0.1});
///
/// Slots:   accumulators, which start at initial_accumulator_value.
/// Range:   initial_accumulator_value > 0; epsilon >= 0. If the loss is a mean over the
///          batch, gradients are small: use an initial_accumulator_value of 1e-8 to 1e-4.
/// Source:  tf.tpu.experimental.embedding.Adagrad; Duchi et al. 2011.
/// Differs: torch::optim::Adagrad adds eps outside the root and starts at 0;
///          Keras 3 adds epsilon inside the root, older Keras outside.
struct Adagrad {
  LearningRate learning_rate = 0.001;
  double initial_accumulator_value = 0.1;
  double epsilon = 0.0;
  bool epsilon_inside_sqrt = false;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      Adagrad,
      learning_rate,
      initial_accumulator_value,
      epsilon,
      epsilon_inside_sqrt)
};

}  // namespace tessera::optim
