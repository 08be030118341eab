// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp FTRL
/// Follow the regularised leader. l1 makes weights exactly zero.
///
///   p(a)         = a^-learning_rate_power
///   linear      += gradient + 2 * l2_shrinkage * weight
///                  - weight * (p(accumulator + gradient^2) - p(accumulator))
///                    / rate
///   accumulator += gradient^2
///   weight       = (clamp(linear, -l1, l1) - linear)
///                  / ((p(accumulator) + beta) / rate + 2 * l2)
///
/// `rate` is learning_rate. A learning_rate_power of 0 makes p(a) = 1 for every a, also
/// for 0. With multiply_linear_by_learning_rate, the linear slot holds the value above
/// times the learning rate, and l1, l2 and the terms with p and beta are multiplied by the
/// learning rate, too. The weights are the same if the learning rate is constant. A
/// learning rate of 0 does not change a row.
///
/// The weight is a function of the slots. So the first update of a row discards its
/// initial weight, as upstream does. With keep_initial_weight, the initial weight w has
/// an effect: for the first update, the linear slot has this value instead of 0:
///
///   -sign(w) * (|w| * ((p(accumulator) + beta) / rate + 2 * l2) + l1)
///
///   // Weights that matter little become exactly zero.
///   TPUEmbedding embedding(
///       features, FTRL{.learning_rate = 0.1, .l1_regularization_strength = 1.0});
///
/// Slots:   accumulators, which start at initial_accumulator_value, and linears, which
///          start at 0.
/// Range:   learning_rate_power <= 0, initial_accumulator_value > 0,
///          others >= 0.
/// Source:  tf.tpu.experimental.embedding.FTRL; McMahan et al. 2013.
struct FTRL {
  LearningRate learning_rate = 0.001;
  double learning_rate_power = -0.5;
  double l1_regularization_strength = 0.0;
  double l2_regularization_strength = 0.0;
  double beta = 0.0;
  double initial_accumulator_value = 0.1;
  bool multiply_linear_by_learning_rate = false;
  double l2_shrinkage_regularization_strength = 0.0;
  bool keep_initial_weight = false;
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      FTRL,
      learning_rate,
      learning_rate_power,
      l1_regularization_strength,
      l2_regularization_strength,
      beta,
      initial_accumulator_value,
      multiply_linear_by_learning_rate,
      l2_shrinkage_regularization_strength,
      keep_initial_weight)
};

}  // namespace tessera::optim
