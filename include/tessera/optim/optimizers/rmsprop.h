// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp RMSprop
/// RMSprop. It is Adagrad with a running mean of the squared gradients instead of a sum.
///
///   square   = rho * square + (1 - rho) * gradient^2
///   step     = learning_rate * gradient / sqrt(square + epsilon)
///   momenta  = momentum * momenta + step                    (momentum > 0)
///   weight  -= momenta, or step without momentum
///
/// With epsilon_inside_sqrt = false, the denominator is sqrt(...) + epsilon. If centered,
/// the variance of the gradients takes the place of square:
///
///   variance = rho * variance + (1 - rho) * rho * (gradient - mean)^2
///   mean     = rho * mean + (1 - rho) * gradient
///
/// This variance equals square - mean^2, without the rounding errors of this difference.
///
///   TPUEmbedding embedding(
///       features, RMSprop{.learning_rate = 0.01, .rho = 0.9, .momentum = 0.9});
///
/// Slots:   mean_squares, or variances if centered; momenta if momentum > 0; means if
///          centered. All start at 0. If a file of an older version has mean_squares
///          instead of variances, a load converts them.
/// Range:   rho, momentum in [0, 1], epsilon > 0.
/// Source:  the TPU embedding configuration's rms_prop; Hinton 2012.
/// Differs: torch::optim::RMSprop adds eps outside the root, and multiplies the momentum,
///          not the gradient, by the learning rate. If centered, TensorFlow and Keras
///          subtract mean^2 in float32, and torch does, too: gradients that hardly change
///          then give NaN or wrong steps.
struct RMSprop {
  LearningRate learning_rate = 0.001;
  double rho = 0.9;
  double momentum = 0.0;
  double epsilon = 1e-7;
  bool centered = false;
  bool epsilon_inside_sqrt = true;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      RMSprop,
      learning_rate,
      rho,
      momentum,
      epsilon,
      centered,
      epsilon_inside_sqrt)
};

}  // namespace tessera::optim
