// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/row_wise_adagrad.h>

#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

struct RowWiseAdagradDefinition final : OptimizerDefinition<RowWiseAdagrad> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {
        {.name = "accumulators",
         .initial_value = spec.initial_accumulator_value,
         .is_per_row = true}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.not_negative(
        "initial_accumulator_value", spec.initial_accumulator_value);
    checks.positive("epsilon", spec.epsilon);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::RowWiseAdagradRule{
        .learning_rate = as_float(context.learning_rate),
        .epsilon = as_float(spec.epsilon)};
  }

  void update_rows(const TensorUpdate& update) const override {
    Tensor& accumulators = update.slots[0];
    accumulators.add_(update.gradient.square().mean(-1));
    update.weight.addcdiv_(
        update.gradient,
        (accumulators.sqrt() + spec.epsilon).unsqueeze(-1),
        -update.learning_rate());
  }
};

}  // namespace

DefinitionOf<RowWiseAdagrad> definition_of(const RowWiseAdagrad& spec) {
  return std::make_unique<RowWiseAdagradDefinition>(spec);
}

}  // namespace tessera::optim
