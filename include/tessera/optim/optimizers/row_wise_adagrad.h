// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizers/common_fields.h>
#include <tessera/optim/slot_creation.h>

#include <cstdint>
#include <optional>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp RowWiseAdagrad
/// Adagrad with one accumulator per row. So the slot has 1 / dim of the table's size.
///
///   accumulator += mean over the row of gradient^2
///   weight      -= learning_rate * gradient / (sqrt(accumulator) + epsilon)
///
///   // For large tables.
///   TPUEmbedding embedding(features, RowWiseAdagrad{.learning_rate = 0.1});
///
/// Slots:   accumulators [vocab], which start at initial_accumulator_value.
/// Range:   initial_accumulator_value >= 0, epsilon > 0.
/// Source:  FBGEMM's EXACT_ROWWISE_ADAGRAD.
struct RowWiseAdagrad {
  LearningRate learning_rate = 0.01;
  double initial_accumulator_value = 0.0;
  double epsilon = 1e-8;
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

  bool operator==(const RowWiseAdagrad&) const = default;

  TESSERA_OPTIMIZER_FIELDS(
      RowWiseAdagrad,
      learning_rate,
      initial_accumulator_value,
      epsilon)
};

}  // namespace tessera::optim
