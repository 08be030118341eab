// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

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
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(
      RowWiseAdagrad,
      learning_rate,
      initial_accumulator_value,
      epsilon)
};

}  // namespace tessera::optim
