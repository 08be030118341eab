// SPDX-License-Identifier: Apache-2.0
// Adagrad and its variants.
#include <tessera/optim/optimizers/adagrad.h>

#include <tessera/optim/optimizers/adagrad_momentum.h>
#include <tessera/optim/optimizers/proximal_adagrad.h>
#include <tessera/optim/optimizers/row_wise_adagrad.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

OptimizerSpec translate_adagrad(const KerasConfig& config) {
  const bool has_epsilon = !config.is_tpu() && config.number("epsilon") != 0.0;
  return config.finish(
      Adagrad{.epsilon_inside_sqrt = has_epsilon && !config.is_legacy()},
      IdleRows::kUnchanged);
}

struct AdagradDefinition final : OptimizerDefinition<Adagrad> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {
        {.name = "accumulators",
         .initial_value = spec.initial_accumulator_value}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.positive(
        "initial_accumulator_value", spec.initial_accumulator_value);
    checks.not_negative("epsilon", spec.epsilon);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    const bool inside = spec.epsilon_inside_sqrt;
    return kernels::AdagradRule{
        .learning_rate = as_float(context.learning_rate),
        .epsilon_inside = inside ? as_float(spec.epsilon) : 0.0F,
        .epsilon_outside = inside ? 0.0F : as_float(spec.epsilon)};
  }

  void update_rows(const TensorUpdate& update) const override {
    Tensor& accumulators = update.slots[0];
    accumulators.addcmul_(update.gradient, update.gradient);
    update.weight.addcdiv_(
        update.gradient,
        spec.epsilon_inside_sqrt ? (accumulators + spec.epsilon).sqrt()
                                 : accumulators.sqrt() + spec.epsilon,
        -update.learning_rate());
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "Adagrad",
         .is_on_tpu = true,
         .is_in_legacy = true,
         .options =
             {{"learning_rate", 0.001},
              {"initial_accumulator_value", 0.1},
              {"epsilon", 1e-7, Mapping::kNotOnTpu}},
         .translate = translate_adagrad}};
  }

  Json to_keras(const KerasWriter& writer) const override {
    writer.require(
        spec.epsilon == 0.0 || spec.epsilon_inside_sqrt,
        "epsilon_inside_sqrt = false");
    return writer.write("Adagrad", spec);
  }
};

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

DefinitionOf<Adagrad> definition_of(const Adagrad& spec) {
  return std::make_unique<AdagradDefinition>(spec);
}

DefinitionOf<AdagradMomentum> definition_of(const AdagradMomentum& spec) {
  return std::make_unique<AdagradMomentumDefinition>(spec);
}

DefinitionOf<ProximalAdagrad> definition_of(const ProximalAdagrad& spec) {
  return std::make_unique<ProximalAdagradDefinition>(spec);
}

DefinitionOf<RowWiseAdagrad> definition_of(const RowWiseAdagrad& spec) {
  return std::make_unique<RowWiseAdagradDefinition>(spec);
}

}  // namespace tessera::optim
