// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/proximal_adagrad.h>

#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

struct ProximalAdagradDefinition final : OptimizerDefinition<ProximalAdagrad> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {
        {.name = "accumulators",
         .initial_value = spec.initial_accumulator_value}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.positive(
        "initial_accumulator_value", spec.initial_accumulator_value);
    checks.not_negative(
        "l1_regularization_strength", spec.l1_regularization_strength);
    checks.not_negative(
        "l2_regularization_strength", spec.l2_regularization_strength);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::ProximalAdagradRule{
        .learning_rate = as_float(context.learning_rate),
        .l1 = as_float(spec.l1_regularization_strength),
        .l2 = as_float(spec.l2_regularization_strength)};
  }

  void update_rows(const TensorUpdate& update) const override {
    Tensor& weight = update.weight;
    Tensor& accumulators = update.slots[0];
    accumulators.addcmul_(update.gradient, update.gradient);
    const Tensor rates = accumulators.rsqrt() * update.learning_rate();
    const Tensor moved = weight - rates * update.gradient;
    const Tensor size =
        (moved.abs() - rates * spec.l1_regularization_strength).clamp_min(0.0);
    weight.copy_(
        moved.sign() * size / (1.0 + rates * spec.l2_regularization_strength));
  }
};

}  // namespace

DefinitionOf<ProximalAdagrad> definition_of(const ProximalAdagrad& spec) {
  return std::make_unique<ProximalAdagradDefinition>(spec);
}

}  // namespace tessera::optim
