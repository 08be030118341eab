// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/adadelta.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

struct AdadeltaDefinition final : OptimizerDefinition<Adadelta> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {{.name = "accumulators"}, {.name = "updates", .position = 1}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.in_unit_interval("rho", spec.rho);
    checks.positive("epsilon", spec.epsilon);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::AdadeltaRule{
        .learning_rate = as_float(context.learning_rate),
        .rho = spec.rho,
        .epsilon = as_float(spec.epsilon)};
  }

  void update_rows(const TensorUpdate& update) const override {
    const Tensor& gradient = update.gradient;
    Tensor& accumulators = update.slots[0];
    Tensor& updates = update.slots[1];
    blend(accumulators, spec.rho, gradient.square());
    const Tensor delta = gradient * (updates + spec.epsilon).sqrt() /
        (accumulators + spec.epsilon).sqrt();
    blend(updates, spec.rho, delta.square());
    update.weight.sub_(delta, update.learning_rate());
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "Adadelta",
         .is_in_legacy = true,
         .options =
             {{"learning_rate", 0.001}, {"rho", 0.95}, {"epsilon", 1e-7}},
         .translate = translate_plain<Adadelta>}};
  }
};

}  // namespace

DefinitionOf<Adadelta> definition_of(const Adadelta& spec) {
  return std::make_unique<AdadeltaDefinition>(spec);
}

}  // namespace tessera::optim
