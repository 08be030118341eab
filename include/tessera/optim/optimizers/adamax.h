// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp Adamax
/// Adamax. It is Adam that divides by a decaying maximum of |gradient| instead of the
/// root of the second moment.
///
///   momentum = beta_1 * momentum + (1 - beta_1) * gradient
///   norm     = max(beta_2 * norm, |gradient|)
///   weight  -= learning_rate / (1 - beta_1^t) * momentum / (norm + epsilon)
///
/// t = 1, 2, ... counts the table's updates.
///
///   TPUEmbedding embedding(
///       features, Adamax{.learning_rate = 0.01, .beta_1 = 0.9, .beta_2 = 0.99});
///
/// Slots:   momenta and norms; both start at 0.
/// Range:   beta_1 in [0, 1), beta_2 in [0, 1], epsilon > 0.
/// Source:  keras.optimizers.Adamax; Kingma and Ba 2014, section 7.1.
struct Adamax {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(Adamax, learning_rate, beta_1, beta_2, epsilon)
};

}  // namespace tessera::optim
