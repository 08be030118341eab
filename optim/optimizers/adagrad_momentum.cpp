// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/adagrad_momentum.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

struct AdagradMomentumDefinition final : OptimizerDefinition<AdagradMomentum> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {{.name = "accumulators"}, {.name = "momenta", .position = 1}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.in_unit_interval("momentum", spec.momentum);
    checks.in_unit_interval("beta2", spec.beta2);
    checks.positive("exponent", spec.exponent);
    checks.positive("epsilon", spec.epsilon);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::AdagradMomentumRule{
        .learning_rate = as_float(context.learning_rate),
        .momentum = as_float(spec.momentum),
        .beta_2 = spec.beta2,
        .epsilon = as_float(spec.epsilon),
        .exponent = as_float(spec.exponent),
        .use_nesterov = spec.use_nesterov};
  }

  void update_rows(const TensorUpdate& update) const override {
    const Tensor& gradient = update.gradient;
    Tensor& accumulators = update.slots[0];
    Tensor& momenta = update.slots[1];
    if (spec.beta2 == 1.0) {
      accumulators.addcmul_(gradient, gradient);
    } else {
      blend(accumulators, spec.beta2, gradient.square());
    }
    const Tensor scaled =
        gradient * (accumulators + spec.epsilon).pow(-1.0 / spec.exponent);
    momenta.mul_(spec.momentum).add_(scaled);
    update.weight.sub_(
        spec.use_nesterov ? spec.momentum * momenta + scaled : momenta,
        update.learning_rate());
  }
};

}  // namespace

DefinitionOf<AdagradMomentum> definition_of(const AdagradMomentum& spec) {
  return std::make_unique<AdagradMomentumDefinition>(spec);
}

}  // namespace tessera::optim
