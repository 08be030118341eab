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

class SGDDefinition final : public OptimizerDefinition<SGD> {
 public:
  std::vector<SlotSpec> slots(const SGD& /*spec*/) const override {
    return {};
  }

  void validate(const SGD& /*spec*/, const RangeChecks& /*checks*/)
      const override {}

  kernels::RowRule row_rule(const SGD& /*spec*/, const StepContext& context)
      const override {
    return kernels::SgdRule{.learning_rate = as_float(context.learning_rate)};
  }

  void update_rows(const SGD& /*spec*/, const TensorUpdate& update)
      const override {
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

const OptimizerDefinition<SGD>& definition_of(const SGD& /*spec*/) {
  static const SGDDefinition definition;
  return definition;
}

}  // namespace tessera::optim
