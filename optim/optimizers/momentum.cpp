// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/momentum.h>

#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

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

  // The other direction is in sgd.cpp.
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

DefinitionOf<Momentum> definition_of(const Momentum& spec) {
  return std::make_unique<MomentumDefinition>(spec);
}

}  // namespace tessera::optim
