// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizer.h>

#include "optim/row_update.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

namespace tessera::optim {

namespace {

// What the kernels divide by: finite and neither 0 nor subnormal in float32.
bool is_positive_float(double value) {
  using Limits = std::numeric_limits<float>;
  return value >= Limits::min() && value <= Limits::max();
}

// What each spec adds to the common options: its name, its slots in the order
// of the kernel, the check of its own options, and its rule.

const char* name(const SGD&) {
  return "SGD";
}

std::vector<SlotSpec> slots(const SGD&) {
  return {};
}

void validate_own(const SGD&, const std::string&) {}

kernels::RowRule rule(const SGD&, double learning_rate) {
  return kernels::SgdRule{.learning_rate = static_cast<float>(learning_rate)};
}

const char* name(const Adagrad&) {
  return "Adagrad";
}

std::vector<SlotSpec> slots(const Adagrad& spec) {
  return {{"accumulators", spec.initial_accumulator_value}};
}

void validate_own(const Adagrad& spec, const std::string& where) {
  TORCH_CHECK_VALUE(
      is_positive_float(spec.initial_accumulator_value),
      where,
      " initial_accumulator_value must be > 0 and fit in float32, but got ",
      spec.initial_accumulator_value,
      ". Adagrad divides by its root.");
}

kernels::RowRule rule(const Adagrad&, double learning_rate) {
  return kernels::AdagradRule{
      .learning_rate = static_cast<float>(learning_rate)};
}

const char* name(const Adam&) {
  return "Adam";
}

std::vector<SlotSpec> slots(const Adam&) {
  return {{"momenta", 0.0}, {"velocities", 0.0}};
}

void validate_beta(const char* option, double beta, const std::string& where) {
  TORCH_CHECK_VALUE(
      beta >= 0.0 && beta < 1.0,
      where,
      " ",
      option,
      " must be >= 0 and < 1, but got ",
      beta,
      ".");
}

void validate_own(const Adam& spec, const std::string& where) {
  validate_beta("beta_1", spec.beta_1, where);
  validate_beta("beta_2", spec.beta_2, where);
  TORCH_CHECK_VALUE(
      spec.epsilon > 0.0 &&
          is_positive_float(
              spec.sum_inside_sqrt ? spec.epsilon * spec.epsilon
                                   : spec.epsilon),
      where,
      " epsilon must be > 0, and with sum_inside_sqrt its square must fit in "
      "float32, but got ",
      spec.epsilon,
      ".");
}

kernels::RowRule rule(const Adam& spec, double learning_rate) {
  const bool inside = spec.sum_inside_sqrt;
  return kernels::AdamRule{
      .learning_rate = static_cast<float>(learning_rate),
      .beta_1 = static_cast<float>(spec.beta_1),
      .beta_2 = static_cast<float>(spec.beta_2),
      .complement_1 = static_cast<float>(1.0 - spec.beta_1),
      .complement_2 = static_cast<float>(1.0 - spec.beta_2),
      .epsilon_squared =
          inside ? static_cast<float>(spec.epsilon * spec.epsilon) : 0.0F,
      .epsilon = inside ? 0.0F : static_cast<float>(spec.epsilon)};
}

void validate_limits(
    const char* option,
    const std::optional<double>& low,
    const std::optional<double>& high,
    const std::string& where) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  TORCH_CHECK_VALUE(
      low.value_or(-kInfinity) <= high.value_or(kInfinity),
      where,
      " ",
      option,
      "_min must be <= ",
      option,
      "_max, but got ",
      low.value_or(-kInfinity),
      " and ",
      high.value_or(kInfinity),
      ".");
}

template <class Spec>
void validate_common(const Spec& spec, const std::string& where) {
  if (spec.learning_rate.is_constant()) {
    spec.learning_rate.value(where);
  }
  validate_limits(
      "clip_weight", spec.clip_weight_min, spec.clip_weight_max, where);
  validate_limits(
      "clip_gradient", spec.clip_gradient_min, spec.clip_gradient_max, where);
  TORCH_CHECK_VALUE(
      spec.use_gradient_accumulation ||
          (!spec.clip_gradient_min && !spec.clip_gradient_max),
      where,
      " clip_gradient_min and clip_gradient_max need "
      "use_gradient_accumulation = true: the limits hold for the sum over "
      "duplicates. Unset them or accumulate.");
  TORCH_CHECK_VALUE(
      std::isfinite(spec.weight_decay_factor.value_or(0.0)),
      where,
      " weight_decay_factor must be finite, but got ",
      *spec.weight_decay_factor,
      ".");
}

template <class Spec>
kernels::RowStages stages(const Spec& spec, double learning_rate) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto limit = [](const std::optional<double>& value, float otherwise) {
    return value ? static_cast<float>(*value) : otherwise;
  };
  const double decay_scale =
      spec.multiply_weight_decay_factor_by_learning_rate ? learning_rate : 1.0;
  return {
      .clip_gradient = spec.clip_gradient_min || spec.clip_gradient_max,
      .clip_gradient_min = limit(spec.clip_gradient_min, -kInfinity),
      .clip_gradient_max = limit(spec.clip_gradient_max, kInfinity),
      .weight_decay = static_cast<float>(
          spec.weight_decay_factor.value_or(0.0) * decay_scale),
      .clip_weight = spec.clip_weight_min || spec.clip_weight_max,
      .clip_weight_min = limit(spec.clip_weight_min, -kInfinity),
      .clip_weight_max = limit(spec.clip_weight_max, kInfinity)};
}

}  // namespace

std::string name_of(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) -> std::string { return name(spec); }, optimizer);
}

void validate(const OptimizerSpec& optimizer, const std::string& where) {
  const std::string prefix = where + " " + name_of(optimizer) + ":";
  std::visit(
      [&](const auto& spec) {
        validate_common(spec, prefix);
        validate_own(spec, prefix);
      },
      optimizer);
}

std::vector<SlotSpec> slots_of(const OptimizerSpec& optimizer) {
  return std::visit([](const auto& spec) { return slots(spec); }, optimizer);
}

RowUpdate row_update(const OptimizerSpec& optimizer, double learning_rate) {
  return std::visit(
      [&](const auto& spec) {
        return RowUpdate{
            .rule = rule(spec, learning_rate),
            .stages = stages(spec, learning_rate),
            .accumulate = spec.use_gradient_accumulation};
      },
      optimizer);
}

const LearningRate& learning_rate_of(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) -> const LearningRate& {
        return spec.learning_rate;
      },
      optimizer);
}

}  // namespace tessera::optim
