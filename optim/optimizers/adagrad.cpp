// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/adagrad.h>

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

}  // namespace

DefinitionOf<Adagrad> definition_of(const Adagrad& spec) {
  return std::make_unique<AdagradDefinition>(spec);
}

}  // namespace tessera::optim
