// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp LAMB
/// LAMB. It is Adam with steps whose norm is the learning rate times the norm of the row.
///
///   momentum, velocity   as in Adam, with bias correction
///   direction = momentum / (sqrt(velocity) + epsilon) + weight_decay * weight
///   weight   -= learning_rate * |weight| / |direction| * direction
///
/// The norms are those of one row, as in FBGEMM. If a norm is 0, the ratio of the norms
/// is 1. The bias correction uses t = 1, 2, ..., the number of the table's update.
///
///   TPUEmbedding embedding(
///       features, LAMB{.learning_rate = 0.01, .weight_decay = 0.01});
///
/// Slots:   momenta and velocities; both start at 0.
/// Range:   beta_1, beta_2 in [0, 1), epsilon > 0, weight_decay >= 0.
/// Source:  FBGEMM's LAMB; You et al. 2019.
/// Differs: the paper uses the norms of a whole layer.
struct LAMB {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.0;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      LAMB,
      learning_rate,
      beta_1,
      beta_2,
      epsilon,
      weight_decay)
};

}  // namespace tessera::optim
