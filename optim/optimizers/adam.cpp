// SPDX-License-Identifier: Apache-2.0
// Adam and its variants.
#include <tessera/optim/optimizers/adam.h>

#include <tessera/optim/optimizers/adamax.h>
#include <tessera/optim/optimizers/lamb.h>
#include <tessera/optim/optimizers/nadam.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"
#include "optim/optimizers/nadam_factors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

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

Tensor norm_of_rows(const Tensor& rows) {
  return at::linalg_vector_norm(rows, 2, {-1}, /*keepdim=*/true);
}

struct LAMBDefinition final : OptimizerDefinition<LAMB> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {{.name = "momenta"}, {.name = "velocities", .position = 1}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.below_one("beta_1", spec.beta_1);
    checks.below_one("beta_2", spec.beta_2);
    checks.positive("epsilon", spec.epsilon);
    checks.not_negative("weight_decay", spec.weight_decay);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::LambRule{
        .learning_rate = as_float(context.learning_rate),
        .beta_1 = spec.beta_1,
        .beta_2 = spec.beta_2,
        .epsilon = as_float(spec.epsilon),
        .weight_decay = as_float(spec.weight_decay),
        .correction_1 =
            as_float(1.0 / bias_correction(spec.beta_1, context.update)),
        .correction_2 =
            as_float(1.0 / bias_correction(spec.beta_2, context.update))};
  }

  void update_rows(const TensorUpdate& update) const override {
    const auto& [learning_rate, t] = update.context;
    std::vector<Tensor>& slots = update.slots;
    blend(slots[0], spec.beta_1, update.gradient);
    blend(slots[1], spec.beta_2, update.gradient.square());
    const Tensor momenta = slots[0] / bias_correction(spec.beta_1, t);
    const Tensor velocities = slots[1] / bias_correction(spec.beta_2, t);
    const Tensor direction = momenta / (velocities.sqrt() + spec.epsilon) +
        spec.weight_decay * update.weight;
    const Tensor weights = norm_of_rows(update.weight);
    const Tensor directions = norm_of_rows(direction);
    const Tensor trust_ratio = at::where(
        (weights > 0).logical_and(directions > 0),
        weights / directions,
        at::ones_like(weights));
    update.weight.sub_(trust_ratio * direction, learning_rate);
  }

  // to_keras() is not overridden and so refuses the rule, because Keras's Lamb uses the
  // norms of a whole variable.
};

}  // namespace

DefinitionOf<Adam> definition_of(const Adam& spec) {
  return std::make_unique<AdamDefinition>(spec);
}

DefinitionOf<Adamax> definition_of(const Adamax& spec) {
  return std::make_unique<AdamaxDefinition>(spec);
}

DefinitionOf<Nadam> definition_of(const Nadam& spec) {
  return std::make_unique<NadamDefinition>(spec);
}

DefinitionOf<LAMB> definition_of(const LAMB& spec) {
  return std::make_unique<LAMBDefinition>(spec);
}

}  // namespace tessera::optim
