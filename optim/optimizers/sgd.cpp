// SPDX-License-Identifier: Apache-2.0
// SGD and Momentum.
#include <tessera/optim/optimizers/sgd.h>

#include <tessera/optim/optimizers/momentum.h>

#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

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

struct MomentumDefinition final : OptimizerDefinition<Momentum> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    return {{.name = "momenta"}};
  }

  void validate(const RangeChecks& checks) const override {
    checks.in_unit_interval("momentum", spec.momentum);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    return kernels::MomentumRule{
        .learning_rate = as_float(context.learning_rate),
        .momentum = as_float(spec.momentum),
        .use_nesterov = spec.use_nesterov,
        .is_scaled = spec.scale_momentum_by_learning_rate};
  }

  void update_rows(const TensorUpdate& update) const override {
    const Tensor& gradient = update.gradient;
    const double learning_rate = update.learning_rate();
    Tensor& momenta = update.slots[0];
    momenta.mul_(spec.momentum);
    if (spec.scale_momentum_by_learning_rate) {
      momenta.sub_(gradient, learning_rate);
      update.weight.add_(
          spec.use_nesterov ? spec.momentum * momenta - learning_rate * gradient
                            : momenta);
      return;
    }
    momenta.add_(gradient);
    update.weight.sub_(
        spec.use_nesterov ? gradient + spec.momentum * momenta : momenta,
        learning_rate);
  }

  // translate_sgd() is the other direction.
  Json to_keras(const KerasWriter& writer) const override {
    writer.require(
        spec.scale_momentum_by_learning_rate,
        "scale_momentum_by_learning_rate = false");
    Json json = writer.write("SGD", spec);
    json["config"]["nesterov"] = spec.use_nesterov;
    return json;
  }
};

}  // namespace

DefinitionOf<SGD> definition_of(const SGD& spec) {
  return std::make_unique<SGDDefinition>(spec);
}

DefinitionOf<Momentum> definition_of(const Momentum& spec) {
  return std::make_unique<MomentumDefinition>(spec);
}

}  // namespace tessera::optim
