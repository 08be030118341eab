// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/lion.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

struct LionDefinition final : OptimizerDefinition<Lion> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {{.name = "momenta"}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.in_unit_interval("beta_1", spec.beta_1);
    checks.in_unit_interval("beta_2", spec.beta_2);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::LionRule{
        .learning_rate = as_float(context.learning_rate),
        .beta_1 = spec.beta_1,
        .beta_2 = spec.beta_2};
  }

  void update_rows(const TensorUpdate& update) const override {
    const Tensor& gradient = update.gradient;
    Tensor& momenta = update.slots[0];
    update.weight.sub_(
        (spec.beta_1 * momenta + (1.0 - spec.beta_1) * gradient).sign(),
        update.learning_rate());
    blend(momenta, spec.beta_2, gradient);
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "Lion",
         .options =
             {{"learning_rate", 0.001}, {"beta_1", 0.9}, {"beta_2", 0.99}},
         .translate = translate_plain<Lion>}};
  }
};

}  // namespace

DefinitionOf<Lion> definition_of(const Lion& spec) {
  return std::make_unique<LionDefinition>(spec);
}

}  // namespace tessera::optim
