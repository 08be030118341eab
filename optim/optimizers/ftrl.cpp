// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/ftrl.h>

#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/copysign.h>
#include <ATen/ops/where.h>

namespace tessera::optim {

namespace {

using at::Tensor;

struct FTRLDefinition final : OptimizerDefinition<FTRL> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {
        {.name = "accumulators",
         .initial_value = spec.initial_accumulator_value},
        {.name = "linears", .position = 1}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.check(
        is_finite_float(spec.learning_rate_power) &&
            spec.learning_rate_power <= 0.0,
        "learning_rate_power",
        "<= 0 and finite in float32",
        spec.learning_rate_power);
    checks.positive(
        "initial_accumulator_value", spec.initial_accumulator_value);
    checks.not_negative(
        "l1_regularization_strength", spec.l1_regularization_strength);
    checks.not_negative(
        "l2_regularization_strength", spec.l2_regularization_strength);
    checks.not_negative(
        "l2_shrinkage_regularization_strength",
        spec.l2_shrinkage_regularization_strength);
    checks.not_negative("beta", spec.beta);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::FtrlRule{
        .learning_rate = as_float(context.learning_rate),
        .learning_rate_power = as_float(spec.learning_rate_power),
        .l1 = as_float(spec.l1_regularization_strength),
        .l2 = as_float(spec.l2_regularization_strength),
        .l2_shrinkage = as_float(spec.l2_shrinkage_regularization_strength),
        .beta = as_float(spec.beta),
        .multiply_linear_by_learning_rate =
            spec.multiply_linear_by_learning_rate,
        .keep_initial_weight = spec.keep_initial_weight};
  }

  void update_rows(const TensorUpdate& update) const override {
    const double learning_rate = update.learning_rate();
    if (learning_rate == 0.0) {
      return;  // The formula of the weight needs a learning rate > 0.
    }
    const Tensor& gradient = update.gradient;
    Tensor& weight = update.weight;
    Tensor& accumulators = update.slots[0];
    Tensor& linears = update.slots[1];
    const bool is_multiplied = spec.multiply_linear_by_learning_rate;
    const double unit = is_multiplied ? learning_rate : 1.0;
    const double inverse = is_multiplied ? 1.0 : 1.0 / learning_rate;
    const double l1 = unit * spec.l1_regularization_strength;
    const double two_l2 = 2.0 * unit * spec.l2_regularization_strength;
    const auto power = [&] {
      return accumulators.pow(-spec.learning_rate_power);
    };
    const Tensor old_power = power();
    accumulators.addcmul_(gradient, gradient);
    const Tensor new_power = power();
    if (spec.keep_initial_weight) {
      const Tensor size =
          weight.abs() * ((old_power + spec.beta) * inverse + two_l2) + l1;
      linears.copy_(at::where(
          (linears == 0).logical_and(weight != 0),
          -at::copysign(size, weight),
          linears));
    }
    linears.add_(
        gradient + 2.0 * spec.l2_shrinkage_regularization_strength * weight,
        unit);
    linears.sub_((new_power - old_power) * inverse * weight);
    weight.copy_(
        (linears.clamp(-l1, l1) - linears) /
        ((new_power + spec.beta) * inverse + two_l2));
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "Ftrl",
         .is_on_tpu = true,
         .is_in_legacy = true,
         .options =
             {{"learning_rate", 0.001},
              {"learning_rate_power", -0.5},
              {"initial_accumulator_value", 0.1},
              {"l1_regularization_strength", 0.0},
              {"l2_regularization_strength", 0.0},
              {"l2_shrinkage_regularization_strength", 0.0, Mapping::kNotOnTpu},
              {"beta", 0.0}},
         .translate = translate_plain<FTRL>}};
  }

  Json to_keras(const KerasWriter& writer) const override {
    writer.require(
        !spec.multiply_linear_by_learning_rate,
        "multiply_linear_by_learning_rate = true");
    writer.require(!spec.keep_initial_weight, "keep_initial_weight = true");
    return writer.write("Ftrl", spec);
  }
};

}  // namespace

DefinitionOf<FTRL> definition_of(const FTRL& spec) {
  return std::make_unique<FTRLDefinition>(spec);
}

}  // namespace tessera::optim
