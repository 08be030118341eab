// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers.h>

#include "tests/test_headers.h"

namespace tessera::test {

struct NamedSpec {
  std::string name;
  optim::OptimizerSpec spec;
};

inline void PrintTo(const NamedSpec& spec, std::ostream* stream) {
  *stream << spec.name;
}

/// A custom rule with a slot per element and one per row: gradients scaled by
/// the root of the row's mean square, with momentum.
inline optim::CustomOptimizer custom_spec(double learning_rate) {
  return {
      .learning_rate = learning_rate,
      .rule = optim::CustomRule(
          "normalised",
          [](optim::CustomRows& rows) {
            rows.slots[1].add_(rows.gradients.square().mean(-1));
            const at::Tensor scaled =
                rows.gradients / rows.slots[1].sqrt().unsqueeze(-1);
            rows.slots[0] = 0.5 * rows.slots[0] + scaled;  // replaced
            rows.weights.sub_(rows.slots[0], rows.learning_rate);  // in place
          }),
      .slots = {
          {.name = "class", .initial_value = 0.25},
          {.name = "squares", .initial_value = 0.1, .is_per_row = true}}};
}

/// Every spec, with its variants, at a learning rate of 0.1.
inline std::vector<NamedSpec> spec_variants() {
  using namespace optim;
  const LearningRate rate = 0.1;
  return {
      {"Sgd", SGD{.learning_rate = rate}},
      {"Momentum", Momentum{.learning_rate = rate}},
      {"Nesterov", Momentum{.learning_rate = rate, .use_nesterov = true}},
      {"ScaledNesterov",
       Momentum{
           .learning_rate = rate,
           .use_nesterov = true,
           .scale_momentum_by_learning_rate = true}},
      {"ScaledMomentum",
       Momentum{
           .learning_rate = rate, .scale_momentum_by_learning_rate = true}},
      {"Adagrad", Adagrad{.learning_rate = rate}},
      {"AdagradEpsilonOutside",
       Adagrad{.learning_rate = rate, .epsilon = 0.01}},
      {"AdagradEpsilonInside",
       Adagrad{
           .learning_rate = rate,
           .epsilon = 0.01,
           .epsilon_inside_sqrt = true}},
      {"AdagradMomentum",
       AdagradMomentum{.learning_rate = rate, .momentum = 0.9, .epsilon = 0.1}},
      {"AdagradMomentumDecays",
       AdagradMomentum{
           .learning_rate = rate,
           .momentum = 0.9,
           .use_nesterov = true,
           .exponent = 3.0,
           .beta2 = 0.9,
           .epsilon = 0.1}},
      {"ProximalAdagrad",
       ProximalAdagrad{
           .learning_rate = rate,
           .l1_regularization_strength = 0.05,
           .l2_regularization_strength = 0.1}},
      {"RowWiseAdagrad", RowWiseAdagrad{.learning_rate = rate}},
      {"Adam", Adam{.learning_rate = rate, .epsilon = 0.01}},
      {"AdamCorrected",
       Adam{
           .learning_rate = rate,
           .epsilon = 0.01,
           .sum_inside_sqrt = false,
           .bias_correction = true}},
      {"AmsGrad",
       Adam{.learning_rate = rate, .epsilon = 0.01, .amsgrad = true}},
      {"Ftrl", FTRL{.learning_rate = rate}},
      {"FtrlAllOptions",
       FTRL{
           .learning_rate = rate,
           .l1_regularization_strength = 0.02,
           .l2_regularization_strength = 0.03,
           .beta = 0.1,
           .l2_shrinkage_regularization_strength = 0.04,
           .keep_initial_weight = true}},
      {"FtrlMultiplied",
       FTRL{
           .learning_rate = rate,
           .l1_regularization_strength = 0.02,
           .multiply_linear_by_learning_rate = true}},
      {"RmsProp", RMSprop{.learning_rate = rate, .epsilon = 0.01}},
      {"RmsPropAllOptions",
       RMSprop{
           .learning_rate = rate,
           .momentum = 0.5,
           .epsilon = 0.01,
           .centered = true,
           .epsilon_inside_sqrt = false}},
      {"RmsPropCentered",
       RMSprop{.learning_rate = rate, .epsilon = 0.01, .centered = true}},
      {"Adadelta", Adadelta{.learning_rate = 1.0, .epsilon = 0.01}},
      {"Lion", Lion{.learning_rate = rate}},
      {"Lamb", LAMB{.learning_rate = rate, .weight_decay = 0.1}},
      {"Adamax", Adamax{.learning_rate = rate, .epsilon = 0.01}},
      {"Nadam", Nadam{.learning_rate = rate, .epsilon = 0.01}},
      {"NadamSlowSchedule",
       Nadam{.learning_rate = rate, .epsilon = 0.01, .schedule_decay = 0.004}},
      {"Custom", custom_spec(0.1)}};
}

/// The parameters of tests of every spec, and their names.
inline auto all_variants() {
  return testing::ValuesIn(spec_variants());
}

inline constexpr auto spec_name = [](const auto& info) {
  return info.param.name;
};

}  // namespace tessera::test
