// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp Lion
/// Lion. All steps have the size of the learning rate; the sign comes from a blend of
/// momentum and gradient.
///
///   blend    = beta_1 * momenta + (1 - beta_1) * gradient
///   weight  -= learning_rate * sign(blend)
///   momenta  = beta_2 * momenta + (1 - beta_2) * gradient
///
///   // With decoupled weight decay, as in the paper.
///   TPUEmbedding embedding(
///       features,
///       Lion{
///           .learning_rate = 0.01,
///           .weight_decay_factor = 0.1,
///           .multiply_weight_decay_factor_by_learning_rate = true});
///
/// Slots:   momenta, which start at 0.
/// Range:   beta_1, beta_2 in [0, 1].
/// Source:  keras.optimizers.Lion; Chen et al. 2023.
struct Lion {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.99;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(Lion, learning_rate, beta_1, beta_2)
};

}  // namespace tessera::optim
