// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/sgd.h>

#include <tessera/optim/optimizers/momentum.h>

#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

// Keras's SGD with momentum becomes a Momentum.
OptimizerSpec translate_sgd(const KerasConfig& config) {
  const bool use_nesterov = config.flag("nesterov");
  if (config.number("momentum") == 0.0) {
    return config.finish(SGD{}, IdleRows::kUnchanged);
  }
  return config.finish(
      Momentum{
          .use_nesterov = use_nesterov,
          .scale_momentum_by_learning_rate = true},
      config.is_legacy() ? IdleRows::kUnchanged : IdleRows::kUpdated);
}

struct SGDDefinition final : OptimizerDefinition<SGD> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {};
  }

  void validate(const RangeChecks& /*checks*/) const override {}

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::SgdRule{.learning_rate = as_float(context.learning_rate)};
  }

  void update_rows(const TensorUpdate& update) const override {
    update.weight.sub_(update.gradient, update.learning_rate());
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "SGD",
         .is_on_tpu = true,
         .is_in_legacy = true,
         .options =
             {{"learning_rate", 0.01},
              {"momentum", 0.0, Mapping::kNotOnTpu},
              {"nesterov", false, Mapping::kNotOnTpu}},
         .translate = translate_sgd}};
  }
};

}  // namespace

DefinitionOf<SGD> definition_of(const SGD& spec) {
  return std::make_unique<SGDDefinition>(spec);
}

}  // namespace tessera::optim
