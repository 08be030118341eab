// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers.h>

#include <variant>

namespace tessera::optim {

/// The options that all specs share, with the values of one spec. This object refers to
/// the spec, which must live longer.
struct CommonOptions {
  const LearningRate& learning_rate;
  TESSERA_COMMON_OPTIONS;
  /// `lazy` or `lazy_adam`; true for specs without either.
  bool is_lazy;
  const SlotCreation& slot_creation;

  bool clips_weight() const {
    return clip_weight_min || clip_weight_max;
  }
  bool clips_gradient() const {
    return clip_gradient_min || clip_gradient_max;
  }
  /// The share of its value that a weight loses in an update; 0 without weight decay.
  double weight_decay(double rate) const {
    return weight_decay_factor.value_or(0.0) *
        (multiply_weight_decay_factor_by_learning_rate ? rate : 1.0);
  }
};

template <class Spec>
bool is_lazy(const Spec& spec) {
  if constexpr (requires { spec.lazy_adam; }) {
    return spec.lazy_adam;
  } else if constexpr (requires { spec.lazy; }) {
    return spec.lazy;
  } else {
    return true;
  }
}

template <class Spec>
const SlotCreation& slot_creation(const Spec& spec) {
  if constexpr (requires { spec.slot_creation; }) {
    return spec.slot_creation;
  } else {
    static const SlotCreation none;
    return none;
  }
}

template <class Spec>
CommonOptions common_options(const Spec& spec) {
  return {
      .learning_rate = spec.learning_rate,
      .use_gradient_accumulation = spec.use_gradient_accumulation,
      .clip_weight_min = spec.clip_weight_min,
      .clip_weight_max = spec.clip_weight_max,
      .clip_gradient_min = spec.clip_gradient_min,
      .clip_gradient_max = spec.clip_gradient_max,
      .weight_decay_factor = spec.weight_decay_factor,
      .multiply_weight_decay_factor_by_learning_rate =
          spec.multiply_weight_decay_factor_by_learning_rate,
      .gradient_accumulation_steps = spec.gradient_accumulation_steps,
      .is_lazy = is_lazy(spec),
      .slot_creation = slot_creation(spec)};
}

/// Returns the common options of the spec inside `optimizer`.
inline CommonOptions common_options(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) { return common_options(spec); },
      optimizer.variant());
}

}  // namespace tessera::optim
