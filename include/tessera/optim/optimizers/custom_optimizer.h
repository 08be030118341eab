// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/optim/custom_rule.h>
#include <tessera/optim/optimizers/common_fields.h>

#include <string>
#include <vector>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp CustomSlot
/// A slot of a custom rule: a tensor that the rule keeps for each table.
///
///   const CustomOptimizer momentum{
///       .learning_rate = 0.1,
///       .rule = CustomRule(
///           "momentum",
///           [](CustomRows& rows) {
///             rows.slots[0].mul_(0.9).add_(rows.gradients);
///             rows.weights.sub_(rows.slots[0], rows.learning_rate);
///           }),
///       .slots = {CustomSlot{.name = "momenta", .initial_value = 0.0}}};
struct CustomSlot {
  /// Unique in the spec. It has only letters, digits and _.
  std::string name = {};
  double initial_value = 0.0;
  /// Whether the slot holds one number per row: [vocab] instead of [vocab, dim].
  bool is_per_row = false;

  bool operator==(const CustomSlot&) const = default;

  TESSERA_FIELDS(name, initial_value, is_per_row)
};

// snippet: tests/docs/reference_optim_test.cpp CustomOptimizer
/// An optimizer with a user-defined rule, which is a function of the touched rows.
///
///   TPUEmbedding embedding(
///       features,
///       CustomOptimizer{
///           .learning_rate = 0.1,
///           .rule = CustomRule("sign", [](CustomRows& rows) {
///             rows.weights.sub_(rows.gradients.sign(), rows.learning_rate);
///           })});
///
/// Slots:   those of `slots`; each starts at its initial value.
/// Range:   slot names are unique and have only letters, digits and _.
/// Errors:  what the rule throws, before any row of any table has changed.
/// Source:  tf.tpu.experimental.embedding.CustomOptimizer.
/// Differs: the function captures its hyperparameters.
struct CustomOptimizer {
  LearningRate learning_rate = 0.01;
  CustomRule rule = {};
  std::vector<CustomSlot> slots = {};
  TESSERA_COMMON_OPTIONS;
  SlotCreation slot_creation = {};

  TESSERA_OPTIMIZER_FIELDS(CustomOptimizer, learning_rate, rule, slots)
};

}  // namespace tessera::optim
