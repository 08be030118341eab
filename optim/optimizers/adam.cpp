// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/adam.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>

#include <cmath>

namespace tessera::optim {

namespace {

using at::Tensor;

double corrected_learning_rate(const Adam& spec, const StepContext& context) {
  double learning_rate = context.learning_rate;
  if (spec.bias_correction) {
    learning_rate *= std::sqrt(bias_correction(spec.beta_2, context.update)) /
        bias_correction(spec.beta_1, context.update);
  }
  return learning_rate;
}

std::vector<KerasOption> adam_options() {
  return {
      {"learning_rate", 0.001},
      {"beta_1", 0.9},
      {"beta_2", 0.999},
      {"epsilon", 1e-7},
      {"amsgrad", false, Mapping::kNotOnTpu}};
}

// This translates AdamW, too. finish() reads weight_decay for all classes.
OptimizerSpec translate_adam(const KerasConfig& config) {
  return config.finish(
      Adam{
          .sum_inside_sqrt = config.is_tpu(),
          .bias_correction = !config.is_tpu()},
      IdleRows::kUpdated);
}

struct AdamDefinition final : OptimizerDefinition<Adam> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    std::vector<SlotSpec> slots{
        {.name = "momenta"}, {.name = "velocities", .position = 1}};
    if (spec.amsgrad) {
      slots.push_back({.name = "max_velocities", .position = 2});
    }
    return slots;
  }

  void validate(const RangeChecks& checks) const override {
    checks.below_one("beta_1", spec.beta_1);
    checks.below_one("beta_2", spec.beta_2);
    checks.positive("epsilon", spec.epsilon);
    if (spec.sum_inside_sqrt) {
      checks.positive("epsilon^2", spec.epsilon * spec.epsilon);
    }
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    const bool inside = spec.sum_inside_sqrt;
    return kernels::AdamRule{
        .learning_rate = as_float(corrected_learning_rate(spec, context)),
        .beta_1 = spec.beta_1,
        .beta_2 = spec.beta_2,
        .epsilon_inside = inside ? as_float(spec.epsilon * spec.epsilon) : 0.0F,
        .epsilon_outside = inside ? 0.0F : as_float(spec.epsilon),
        .use_amsgrad = spec.amsgrad};
  }

  void update_rows(const TensorUpdate& update) const override {
    std::vector<Tensor>& slots = update.slots;
    blend(slots[0], spec.beta_1, update.gradient);
    blend(slots[1], spec.beta_2, update.gradient.square());
    Tensor velocities = slots[1];
    if (spec.amsgrad) {
      slots[2].copy_(at::maximum(slots[2], velocities));
      velocities = slots[2];
    }
    update.weight.addcdiv_(
        slots[0],
        spec.sum_inside_sqrt ? (velocities + spec.epsilon * spec.epsilon).sqrt()
                             : velocities.sqrt() + spec.epsilon,
        -corrected_learning_rate(spec, update.context));
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "Adam",
         .is_on_tpu = true,
         .is_in_legacy = true,
         .options = adam_options(),
         .translate = translate_adam},
        {.name = "AdamW",
         .options = adam_options(),
         .other_defaults = {{"weight_decay", 0.004, Mapping::kNotOnTpu}},
         .translate = translate_adam}};
  }

  Json to_keras(const KerasWriter& writer) const override {
    writer.require(spec.bias_correction, "bias_correction = false");
    writer.require(!spec.sum_inside_sqrt, "sum_inside_sqrt = true");
    const bool decays = spec.weight_decay_factor.value_or(0.0) != 0.0;
    return writer.write(decays ? "AdamW" : "Adam", spec);
  }
};

}  // namespace

DefinitionOf<Adam> definition_of(const Adam& spec) {
  return std::make_unique<AdamDefinition>(spec);
}

}  // namespace tessera::optim
