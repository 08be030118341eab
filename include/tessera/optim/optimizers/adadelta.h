// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizers/common_fields.h>
#include <tessera/optim/slot_creation.h>

#include <cstdint>
#include <optional>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp Adadelta
/// Adadelta. The root mean square of past updates sets the step size.
///
///   accumulator = rho * accumulator + (1 - rho) * gradient^2
///   delta       = gradient * sqrt((update + epsilon) / (accumulator + epsilon))
///   update      = rho * update + (1 - rho) * delta^2
///   weight     -= learning_rate * delta
///
///   // The learning rate of the paper.
///   TPUEmbedding embedding(features, Adadelta{.learning_rate = 1.0});
///
/// Slots:   accumulators and updates; both start at 0.
/// Range:   rho in [0, 1], epsilon > 0.
/// Source:  keras.optimizers.Adadelta; Zeiler 2012.
struct Adadelta {
  LearningRate learning_rate = 0.001;
  double rho = 0.95;
  double epsilon = 1e-7;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const Adadelta&) const = default;

  TESSERA_OPTIMIZER_FIELDS(Adadelta, learning_rate, rho, epsilon)
};

}  // namespace tessera::optim
