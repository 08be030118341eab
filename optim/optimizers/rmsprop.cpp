// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/rmsprop.h>

#include "optim/moving_average.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>

namespace tessera::optim {

namespace {

using at::Tensor;

constexpr const char* kMeanSquares = "mean_squares";

OptimizerSpec translate_rmsprop(const KerasConfig& config) {
  // Legacy Keras has two implementations. With momentum, it uses TensorFlow's fused one:
  // epsilon is inside the root, and only rows of the batch change. Without momentum,
  // epsilon is outside the root, and the slots of all rows decay.
  const bool is_fused = config.is_legacy() && config.number("momentum") > 0.0;
  return config.finish(
      RMSprop{.epsilon_inside_sqrt = is_fused || !config.is_legacy()},
      is_fused ? IdleRows::kUnchanged : IdleRows::kUpdated);
}

struct RMSpropDefinition final : OptimizerDefinition<RMSprop> {
  using OptimizerDefinition::OptimizerDefinition;

  std::vector<SlotSpec> slots() const override {
    std::vector<SlotSpec> slots;
    if (spec.centered) {
      slots.push_back({.name = "variances", .earlier_name = kMeanSquares});
    } else {
      slots.push_back({.name = kMeanSquares});
    }
    if (spec.momentum > 0.0) {
      slots.push_back({.name = "momenta", .position = 1});
    }
    if (spec.centered) {
      slots.push_back({.name = "means", .position = 2});
    }
    return slots;
  }

  void validate(const RangeChecks& checks) const override {
    checks.in_unit_interval("rho", spec.rho);
    checks.in_unit_interval("momentum", spec.momentum);
    checks.positive("epsilon", spec.epsilon);
  }

  kernels::RowRule row_rule(const StepContext& context) const override {
    const bool inside = spec.epsilon_inside_sqrt;
    return kernels::RmspropRule{
        .learning_rate = as_float(context.learning_rate),
        .rho = spec.rho,
        .momentum = as_float(spec.momentum),
        .epsilon_inside = inside ? as_float(spec.epsilon) : 0.0F,
        .epsilon_outside = inside ? 0.0F : as_float(spec.epsilon),
        .is_centered = spec.centered};
  }

  void update_rows(const TensorUpdate& update) const override {
    std::vector<Tensor>& slots = update.slots;
    Tensor& square = slots[0];  // or variance
    if (spec.centered) {
      Tensor& means = slots.back();
      const Tensor deviation = update.gradient - means;
      blend(square, spec.rho, deviation.square().mul_(spec.rho));
      move_mean(means, spec.rho, deviation);
    } else {
      blend(square, spec.rho, update.gradient.square());
    }
    Tensor step = update.learning_rate() * update.gradient /
        (spec.epsilon_inside_sqrt ? (square + spec.epsilon).sqrt()
                                  : square.sqrt() + spec.epsilon);
    if (spec.momentum > 0.0) {
      step = slots[1].mul_(spec.momentum).add_(step);
    }
    update.weight.sub_(step);
  }

  void convert_earlier_slots(std::vector<Tensor>& slots) const override {
    if (spec.centered) {
      const Tensor& means = slots.back();
      slots[0].addcmul_(means, means, -1.0).clamp_min_(0.0);
    }
  }

  std::vector<KerasClass> keras_classes() const override {
    return {
        {.name = "RMSprop",
         .is_in_legacy = true,
         .options =
             {{"learning_rate", 0.001},
              {"rho", 0.9},
              {"momentum", 0.0},
              {"epsilon", 1e-7},
              {"centered", false}},
         .translate = translate_rmsprop}};
  }

  Json to_keras(const KerasWriter& writer) const override {
    writer.require(spec.epsilon_inside_sqrt, "epsilon_inside_sqrt = false");
    return writer.write("RMSprop", spec);
  }
};

}  // namespace

DefinitionOf<RMSprop> definition_of(const RMSprop& spec) {
  return std::make_unique<RMSpropDefinition>(spec);
}

}  // namespace tessera::optim
