// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/lamb.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

namespace tessera::optim {

namespace {

using at::Tensor;

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

DefinitionOf<LAMB> definition_of(const LAMB& spec) {
  return std::make_unique<LAMBDefinition>(spec);
}

}  // namespace tessera::optim
