// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/nadam.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"
#include "optim/optimizers/nadam_factors.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

OptimizerSpec translate_nadam(const KerasConfig& config) {
  return config.finish(
      Nadam{
          .schedule_decay = config.is_legacy() ? config.number("decay") : 1.0},
      config.is_legacy() ? IdleRows::kOnlySlotsUpdated : IdleRows::kUpdated,
      LegacyDecay::kOfMomentum);
}

struct NadamDefinition final : OptimizerDefinition<Nadam> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {{.name = "momenta"}, {.name = "velocities", .position = 1}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.below_one("beta_1", spec.beta_1);
    checks.below_one("beta_2", spec.beta_2);
    checks.positive("epsilon", spec.epsilon);
    checks.not_negative("schedule_decay", spec.schedule_decay);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    const NadamFactors factors = nadam_factors(spec, context.update);
    return kernels::NadamRule{
        .learning_rate = as_float(context.learning_rate),
        .beta_1 = spec.beta_1,
        .beta_2 = spec.beta_2,
        .epsilon = as_float(spec.epsilon),
        .momentum_factor = as_float(factors.momentum),
        .gradient_factor = as_float(factors.gradient),
        .correction_2 = as_float(factors.velocity)};
  }

  void update_rows(const TensorUpdate& update) const override {
    const Tensor& gradient = update.gradient;
    std::vector<Tensor>& slots = update.slots;
    blend(slots[0], spec.beta_1, gradient);
    blend(slots[1], spec.beta_2, gradient.square());
    const NadamFactors factors = nadam_factors(spec, update.context.update);
    update.weight.addcdiv_(
        factors.momentum * slots[0] + factors.gradient * gradient,
        (factors.velocity * slots[1]).sqrt() + spec.epsilon,
        -update.learning_rate());
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "Nadam",
         .is_in_legacy = true,
         .options =
             {{"learning_rate", 0.001},
              {"beta_1", 0.9},
              {"beta_2", 0.999},
              {"epsilon", 1e-7}},
         .other_defaults = {{"decay", 0.004}},
         .translate = translate_nadam}};
  }

  Json to_keras(const KerasWriter& writer) const override {
    writer.require(spec.schedule_decay == 1.0, "schedule_decay other than 1");
    return writer.write("Nadam", spec);
  }
};

}  // namespace

DefinitionOf<Nadam> definition_of(const Nadam& spec) {
  return std::make_unique<NadamDefinition>(spec);
}

}  // namespace tessera::optim
