// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp Momentum
/// Gradient descent with momentum.
///
///   momenta  = momentum * momenta + gradient
///   weight  -= learning_rate * momenta
///
/// With use_nesterov, weight -= learning_rate * (gradient + momentum * momenta), with
/// the new momenta. With scale_momentum_by_learning_rate, the slot holds steps:
///
///   momenta = momentum * momenta - learning_rate * gradient
///   weight += momenta
///
/// With both, weight += momentum * momenta - learning_rate * gradient.
///
///   TPUEmbedding embedding(
///       features,
///       Momentum{.learning_rate = 0.1, .momentum = 0.9, .use_nesterov = true});
///
/// Slots:   momenta, which start at 0.
/// Range:   momentum in [0, 1].
/// Source:  the TPU embedding configuration's momentum; tf.keras SGD for the
///          scaled form.
/// Differs: torch::optim::SGD is the unscaled form and also has dampening. Both forms
///          give the same weights if the learning rate is constant.
struct Momentum {
  LearningRate learning_rate = 0.001;
  double momentum = 0.9;
  bool use_nesterov = false;
  bool scale_momentum_by_learning_rate = false;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      Momentum,
      learning_rate,
      momentum,
      use_nesterov,
      scale_momentum_by_learning_rate)
};

}  // namespace tessera::optim
