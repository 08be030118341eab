// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/adamax.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>

namespace tessera::optim {

namespace {

using at::Tensor;

struct AdamaxDefinition final : OptimizerDefinition<Adamax> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {{.name = "momenta"}, {.name = "norms", .position = 1}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.below_one("beta_1", spec.beta_1);
    checks.in_unit_interval("beta_2", spec.beta_2);
    checks.positive("epsilon", spec.epsilon);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::AdamaxRule{
        .learning_rate = as_float(context.learning_rate),
        .beta_1 = spec.beta_1,
        .beta_2 = as_float(spec.beta_2),
        .epsilon = as_float(spec.epsilon),
        .correction_1 =
            as_float(1.0 / bias_correction(spec.beta_1, context.update))};
  }

  void update_rows(const TensorUpdate& update) const override {
    std::vector<Tensor>& slots = update.slots;
    blend(slots[0], spec.beta_1, update.gradient);
    slots[1].copy_(at::maximum(spec.beta_2 * slots[1], update.gradient.abs()));
    update.weight.addcdiv_(
        slots[0],
        slots[1] + spec.epsilon,
        -update.learning_rate() /
            bias_correction(spec.beta_1, update.context.update));
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "Adamax",
         .is_in_legacy = true,
         .options =
             {{"learning_rate", 0.001},
              {"beta_1", 0.9},
              {"beta_2", 0.999},
              {"epsilon", 1e-7}},
         .translate = translate_plain<Adamax>}};
  }
};

}  // namespace

DefinitionOf<Adamax> definition_of(const Adamax& spec) {
  return std::make_unique<AdamaxDefinition>(spec);
}

}  // namespace tessera::optim
