// SPDX-License-Identifier: Apache-2.0
// What each spec means: its name, its slots in the order of the kernel, the
// range of its own options, and its rule. The options that all specs share are
// at the end.
#include <tessera/optim/optimizer.h>

#include <tessera/common/shorten.h>

#include "optim/nadam_factors.h"
#include "optim/row_update.h"
#include "src/common/check.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <set>

namespace tessera::optim {

namespace {

using Slots = std::vector<SlotSpec>;

float as_float(double value) {
  return static_cast<float>(value);
}

// Checks of one option, with one form of message.
class Range {
 public:
  explicit Range(std::string where) : where_(std::move(where)) {}

  // What the kernels divide by: neither 0 nor subnormal in float32.
  void positive(const char* option, double value) const {
    using Limits = std::numeric_limits<float>;
    check(
        value >= Limits::min() && value <= Limits::max(),
        option,
        "> 0 and fit in float32",
        value);
  }
  void not_negative(const char* option, double value) const {
    check(std::isfinite(value) && value >= 0.0, option, ">= 0", value);
  }
  void in_unit_interval(const char* option, double value) const {
    check(value >= 0.0 && value <= 1.0, option, ">= 0 and <= 1", value);
  }
  void finite(const char* option, double value) const {
    check(std::isfinite(value), option, "finite", value);
  }
  void require(bool is_right, const char* option, const std::string& expected)
      const {
    TESSERA_CHECK_VALUE(is_right, "{} {} must be {}", where_, option, expected);
  }
  void below_one(const char* option, double value) const {
    check(value >= 0.0 && value < 1.0, option, ">= 0 and < 1", value);
  }
  void check(
      bool is_right,
      const char* option,
      const char* expected,
      double value) const {
    TESSERA_CHECK_VALUE(
        is_right,
        "{} {} must be {}, but got {}.",
        where_,
        option,
        expected,
        value);
  }

 private:
  std::string where_;
};

// --- SGD ---------------------------------------------------------------------

const char* name(const SGD&) {
  return "SGD";
}
Slots slots(const SGD&) {
  return {};
}
void validate_own(const SGD&, const Range&) {}
kernels::RowRule rule(const SGD&, const UpdateMoment& moment) {
  return kernels::SgdRule{.learning_rate = as_float(moment.learning_rate)};
}

// --- Momentum ----------------------------------------------------------------

const char* name(const Momentum&) {
  return "Momentum";
}
Slots slots(const Momentum&) {
  return {{.name = "momenta"}};
}
void validate_own(const Momentum& spec, const Range& range) {
  range.in_unit_interval("momentum", spec.momentum);
}
kernels::RowRule rule(const Momentum& spec, const UpdateMoment& moment) {
  return kernels::MomentumRule{
      .learning_rate = as_float(moment.learning_rate),
      .momentum = as_float(spec.momentum),
      .use_nesterov = spec.use_nesterov,
      .is_scaled = spec.scale_momentum_by_learning_rate};
}

// --- Adagrad -----------------------------------------------------------------

const char* name(const Adagrad&) {
  return "Adagrad";
}
Slots slots(const Adagrad& spec) {
  return {
      {.name = "accumulators",
       .initial_value = spec.initial_accumulator_value}};
}
void validate_own(const Adagrad& spec, const Range& range) {
  range.positive("initial_accumulator_value", spec.initial_accumulator_value);
  range.not_negative("epsilon", spec.epsilon);
}
kernels::RowRule rule(const Adagrad& spec, const UpdateMoment& moment) {
  const bool inside = spec.epsilon_inside_sqrt;
  return kernels::AdagradRule{
      .learning_rate = as_float(moment.learning_rate),
      .epsilon_inside = inside ? as_float(spec.epsilon) : 0.0F,
      .epsilon_outside = inside ? 0.0F : as_float(spec.epsilon)};
}

// --- AdagradMomentum ---------------------------------------------------------

const char* name(const AdagradMomentum&) {
  return "AdagradMomentum";
}
Slots slots(const AdagradMomentum&) {
  return {{.name = "accumulators"}, {.name = "momenta", .position = 1}};
}
void validate_own(const AdagradMomentum& spec, const Range& range) {
  range.in_unit_interval("momentum", spec.momentum);
  range.in_unit_interval("beta2", spec.beta2);
  range.positive("exponent", spec.exponent);
  range.positive("epsilon", spec.epsilon);
}
kernels::RowRule rule(const AdagradMomentum& spec, const UpdateMoment& moment) {
  return kernels::AdagradMomentumRule{
      .learning_rate = as_float(moment.learning_rate),
      .momentum = as_float(spec.momentum),
      .beta_2 = spec.beta2,
      .epsilon = as_float(spec.epsilon),
      .exponent = as_float(spec.exponent),
      .use_nesterov = spec.use_nesterov};
}

// --- ProximalAdagrad ---------------------------------------------------------

const char* name(const ProximalAdagrad&) {
  return "ProximalAdagrad";
}
Slots slots(const ProximalAdagrad& spec) {
  return {
      {.name = "accumulators",
       .initial_value = spec.initial_accumulator_value}};
}
void validate_own(const ProximalAdagrad& spec, const Range& range) {
  range.positive("initial_accumulator_value", spec.initial_accumulator_value);
  range.not_negative(
      "l1_regularization_strength", spec.l1_regularization_strength);
  range.not_negative(
      "l2_regularization_strength", spec.l2_regularization_strength);
}
kernels::RowRule rule(const ProximalAdagrad& spec, const UpdateMoment& moment) {
  return kernels::ProximalAdagradRule{
      .learning_rate = as_float(moment.learning_rate),
      .l1 = as_float(spec.l1_regularization_strength),
      .l2 = as_float(spec.l2_regularization_strength)};
}

// --- RowWiseAdagrad ----------------------------------------------------------

const char* name(const RowWiseAdagrad&) {
  return "RowWiseAdagrad";
}
Slots slots(const RowWiseAdagrad& spec) {
  return {
      {.name = "accumulators",
       .initial_value = spec.initial_accumulator_value,
       .is_per_row = true}};
}
void validate_own(const RowWiseAdagrad& spec, const Range& range) {
  range.not_negative(
      "initial_accumulator_value", spec.initial_accumulator_value);
  range.positive("epsilon", spec.epsilon);
}
kernels::RowRule rule(const RowWiseAdagrad& spec, const UpdateMoment& moment) {
  return kernels::RowWiseAdagradRule{
      .learning_rate = as_float(moment.learning_rate),
      .epsilon = as_float(spec.epsilon)};
}

// --- Adam --------------------------------------------------------------------

const char* name(const Adam&) {
  return "Adam";
}
Slots slots(const Adam& spec) {
  Slots slots{{.name = "momenta"}, {.name = "velocities", .position = 1}};
  if (spec.amsgrad) {
    slots.push_back({.name = "max_velocities", .position = 2});
  }
  return slots;
}
void validate_own(const Adam& spec, const Range& range) {
  range.below_one("beta_1", spec.beta_1);
  range.below_one("beta_2", spec.beta_2);
  range.positive("epsilon", spec.epsilon);
  if (spec.sum_inside_sqrt) {
    range.positive("epsilon^2", spec.epsilon * spec.epsilon);
  }
}
kernels::RowRule rule(const Adam& spec, const UpdateMoment& moment) {
  double rate = moment.learning_rate;
  if (spec.bias_correction) {
    const auto update = static_cast<double>(moment.update);
    rate *= std::sqrt(1.0 - std::pow(spec.beta_2, update)) /
        (1.0 - std::pow(spec.beta_1, update));
  }
  const bool inside = spec.sum_inside_sqrt;
  return kernels::AdamRule{
      .learning_rate = as_float(rate),
      .beta_1 = spec.beta_1,
      .beta_2 = spec.beta_2,
      .epsilon_inside = inside ? as_float(spec.epsilon * spec.epsilon) : 0.0F,
      .epsilon_outside = inside ? 0.0F : as_float(spec.epsilon),
      .use_amsgrad = spec.amsgrad};
}

// --- FTRL --------------------------------------------------------------------

const char* name(const FTRL&) {
  return "FTRL";
}
Slots slots(const FTRL& spec) {
  return {
      {.name = "accumulators", .initial_value = spec.initial_accumulator_value},
      {.name = "linears", .position = 1}};
}
void validate_own(const FTRL& spec, const Range& range) {
  range.check(
      std::isfinite(spec.learning_rate_power) &&
          spec.learning_rate_power <= 0.0,
      "learning_rate_power",
      "<= 0",
      spec.learning_rate_power);
  range.positive("initial_accumulator_value", spec.initial_accumulator_value);
  range.not_negative(
      "l1_regularization_strength", spec.l1_regularization_strength);
  range.not_negative(
      "l2_regularization_strength", spec.l2_regularization_strength);
  range.not_negative(
      "l2_shrinkage_regularization_strength",
      spec.l2_shrinkage_regularization_strength);
  range.not_negative("beta", spec.beta);
}
kernels::RowRule rule(const FTRL& spec, const UpdateMoment& moment) {
  return kernels::FtrlRule{
      .learning_rate = as_float(moment.learning_rate),
      .learning_rate_power = as_float(spec.learning_rate_power),
      .l1 = as_float(spec.l1_regularization_strength),
      .l2 = as_float(spec.l2_regularization_strength),
      .l2_shrinkage = as_float(spec.l2_shrinkage_regularization_strength),
      .beta = as_float(spec.beta),
      .multiply_linear_by_learning_rate = spec.multiply_linear_by_learning_rate,
      .keep_initial_weight = spec.keep_initial_weight};
}

// --- RMSprop -----------------------------------------------------------------

const char* name(const RMSprop&) {
  return "RMSprop";
}
Slots slots(const RMSprop& spec) {
  Slots slots{{.name = "mean_squares"}};
  if (spec.momentum > 0.0) {
    slots.push_back({.name = "momenta", .position = 1});
  }
  if (spec.centered) {
    slots.push_back({.name = "means", .position = 2});
  }
  return slots;
}
void validate_own(const RMSprop& spec, const Range& range) {
  range.in_unit_interval("rho", spec.rho);
  range.in_unit_interval("momentum", spec.momentum);
  range.positive("epsilon", spec.epsilon);
}
kernels::RowRule rule(const RMSprop& spec, const UpdateMoment& moment) {
  const bool inside = spec.epsilon_inside_sqrt;
  return kernels::RmspropRule{
      .learning_rate = as_float(moment.learning_rate),
      .rho = spec.rho,
      .momentum = as_float(spec.momentum),
      .epsilon_inside = inside ? as_float(spec.epsilon) : 0.0F,
      .epsilon_outside = inside ? 0.0F : as_float(spec.epsilon),
      .is_centered = spec.centered};
}

// --- Adadelta ----------------------------------------------------------------

const char* name(const Adadelta&) {
  return "Adadelta";
}
Slots slots(const Adadelta&) {
  return {{.name = "accumulators"}, {.name = "updates", .position = 1}};
}
void validate_own(const Adadelta& spec, const Range& range) {
  range.in_unit_interval("rho", spec.rho);
  range.positive("epsilon", spec.epsilon);
}
kernels::RowRule rule(const Adadelta& spec, const UpdateMoment& moment) {
  return kernels::AdadeltaRule{
      .learning_rate = as_float(moment.learning_rate),
      .rho = spec.rho,
      .epsilon = as_float(spec.epsilon)};
}

// --- Lion --------------------------------------------------------------------

const char* name(const Lion&) {
  return "Lion";
}
Slots slots(const Lion&) {
  return {{.name = "momenta"}};
}
void validate_own(const Lion& spec, const Range& range) {
  range.in_unit_interval("beta_1", spec.beta_1);
  range.in_unit_interval("beta_2", spec.beta_2);
}
kernels::RowRule rule(const Lion& spec, const UpdateMoment& moment) {
  return kernels::LionRule{
      .learning_rate = as_float(moment.learning_rate),
      .beta_1 = spec.beta_1,
      .beta_2 = spec.beta_2};
}

// --- LAMB --------------------------------------------------------------------

const char* name(const LAMB&) {
  return "LAMB";
}
Slots slots(const LAMB&) {
  return {{.name = "momenta"}, {.name = "velocities", .position = 1}};
}
void validate_own(const LAMB& spec, const Range& range) {
  range.below_one("beta_1", spec.beta_1);
  range.below_one("beta_2", spec.beta_2);
  range.positive("epsilon", spec.epsilon);
  range.not_negative("weight_decay", spec.weight_decay);
}
kernels::RowRule rule(const LAMB& spec, const UpdateMoment& moment) {
  const auto update = static_cast<double>(moment.update);
  return kernels::LambRule{
      .learning_rate = as_float(moment.learning_rate),
      .beta_1 = spec.beta_1,
      .beta_2 = spec.beta_2,
      .epsilon = as_float(spec.epsilon),
      .weight_decay = as_float(spec.weight_decay),
      .correction_1 = as_float(1.0 / (1.0 - std::pow(spec.beta_1, update))),
      .correction_2 = as_float(1.0 / (1.0 - std::pow(spec.beta_2, update)))};
}

// --- Adamax ------------------------------------------------------------------

const char* name(const Adamax&) {
  return "Adamax";
}
Slots slots(const Adamax&) {
  return {{.name = "momenta"}, {.name = "norms", .position = 1}};
}
void validate_own(const Adamax& spec, const Range& range) {
  range.below_one("beta_1", spec.beta_1);
  range.in_unit_interval("beta_2", spec.beta_2);
  range.positive("epsilon", spec.epsilon);
}
kernels::RowRule rule(const Adamax& spec, const UpdateMoment& moment) {
  const auto update = static_cast<double>(moment.update);
  return kernels::AdamaxRule{
      .learning_rate = as_float(moment.learning_rate),
      .beta_1 = spec.beta_1,
      .beta_2 = as_float(spec.beta_2),
      .epsilon = as_float(spec.epsilon),
      .correction_1 = as_float(1.0 / (1.0 - std::pow(spec.beta_1, update)))};
}

// --- Nadam -------------------------------------------------------------------

const char* name(const Nadam&) {
  return "Nadam";
}
Slots slots(const Nadam&) {
  return {{.name = "momenta"}, {.name = "velocities", .position = 1}};
}
void validate_own(const Nadam& spec, const Range& range) {
  range.below_one("beta_1", spec.beta_1);
  range.below_one("beta_2", spec.beta_2);
  range.positive("epsilon", spec.epsilon);
  range.not_negative("schedule_decay", spec.schedule_decay);
}
kernels::RowRule rule(const Nadam& spec, const UpdateMoment& moment) {
  const NadamFactors factors = nadam_factors(spec, moment.update);
  return kernels::NadamRule{
      .learning_rate = as_float(moment.learning_rate),
      .beta_1 = spec.beta_1,
      .beta_2 = spec.beta_2,
      .epsilon = as_float(spec.epsilon),
      .momentum_factor = as_float(factors.momentum),
      .gradient_factor = as_float(factors.gradient),
      .correction_2 = as_float(factors.velocity)};
}

// --- CustomOptimizer ---------------------------------------------------------

bool is_identifier(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
        (c >= 'A' && c <= 'Z');
  });
}

const char* name(const CustomOptimizer&) {
  return "CustomOptimizer";
}
Slots slots(const CustomOptimizer& spec) {
  Slots slots;
  for (const CustomSlot& slot : spec.slots) {
    slots.push_back(
        {.name = slot.name,
         .initial_value = slot.initial_value,
         .is_per_row = slot.is_per_row});
  }
  return slots;
}
void validate_own(const CustomOptimizer& spec, const Range& range) {
  range.require(
      spec.rule.function() != nullptr,
      "rule",
      spec.rule.is_set() ? "a function, but is the placeholder of '" +
              shorten(spec.rule.name()) + "'. Replace it by CustomRule(\"" +
              shorten(spec.rule.name()) + "\", function)."
                         : "set. Give it CustomRule(name, function).");
  range.require(
      spec.use_gradient_accumulation,
      "use_gradient_accumulation",
      "true: the rule gets the sum of a row's duplicates.");
  std::set<std::string> names;
  for (const CustomSlot& slot : spec.slots) {
    range.require(
        is_identifier(slot.name) && names.insert(slot.name).second,
        "slots",
        "named differently, with letters, digits and _, but got '" +
            shorten(slot.name) + "'.");
    range.finite("slots: initial_value", slot.initial_value);
  }
}

// --- what all specs share ----------------------------------------------------

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

void validate_limits(
    const char* option,
    const std::optional<double>& low,
    const std::optional<double>& high,
    const std::string& where) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  TESSERA_CHECK_VALUE(
      low.value_or(-kInfinity) <= high.value_or(kInfinity),
      "{} {}_min must be <= {}_max, but got {} and {}.",
      where,
      option,
      option,
      low.value_or(-kInfinity),
      high.value_or(kInfinity));
}

template <class Spec>
void validate_common(const Spec& spec, const std::string& where) {
  spec.learning_rate.validate(where);
  validate_limits(
      "clip_weight", spec.clip_weight_min, spec.clip_weight_max, where);
  validate_limits(
      "clip_gradient", spec.clip_gradient_min, spec.clip_gradient_max, where);
  TESSERA_CHECK_VALUE(
      spec.use_gradient_accumulation ||
          (!spec.clip_gradient_min && !spec.clip_gradient_max),
      "{} clip_gradient_min and clip_gradient_max need use_gradient_accumulation = true: the limits hold for the sum over duplicates. Unset them or accumulate.",
      where);
  TESSERA_CHECK_VALUE(
      spec.use_gradient_accumulation || is_lazy(spec),
      "{} updating all rows (lazy = false, lazy_adam = false) needs use_gradient_accumulation = true: one step per row and update.",
      where);
  TESSERA_CHECK_VALUE(
      spec.gradient_accumulation_steps >= 1,
      "{} gradient_accumulation_steps must be >= 1, but got {}.",
      where,
      spec.gradient_accumulation_steps);
  TESSERA_CHECK_VALUE(
      spec.use_gradient_accumulation || spec.gradient_accumulation_steps == 1,
      "{} gradient_accumulation_steps > 1 needs use_gradient_accumulation = true: the mean is of sums over duplicates.",
      where);
  TESSERA_CHECK_VALUE(
      std::isfinite(spec.weight_decay_factor.value_or(0.0)),
      "{} weight_decay_factor must be finite, but got {}.",
      where,
      spec.weight_decay_factor.value_or(0.0));
}

template <class Spec>
kernels::RowStages stages(const Spec& spec, double learning_rate) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto limit = [](const std::optional<double>& value, float otherwise) {
    return value ? as_float(*value) : otherwise;
  };
  const double decay_scale =
      spec.multiply_weight_decay_factor_by_learning_rate ? learning_rate : 1.0;
  return {
      .clip_gradient = spec.clip_gradient_min || spec.clip_gradient_max,
      .clip_gradient_min = limit(spec.clip_gradient_min, -kInfinity),
      .clip_gradient_max = limit(spec.clip_gradient_max, kInfinity),
      .weight_decay =
          as_float(spec.weight_decay_factor.value_or(0.0) * decay_scale),
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
        validate_own(spec, Range(prefix));
      },
      optimizer);
}

bool sweeps_all_rows(const OptimizerSpec& optimizer) {
  return std::visit([](const auto& spec) { return !is_lazy(spec); }, optimizer);
}

std::vector<SlotSpec> slots_of(const OptimizerSpec& optimizer) {
  return std::visit([](const auto& spec) { return slots(spec); }, optimizer);
}

const SlotCreation& slot_creation_of(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) -> const SlotCreation& {
        if constexpr (requires { spec.slot_creation; }) {
          return spec.slot_creation;
        } else {
          static const SlotCreation none;
          return none;
        }
      },
      optimizer);
}

RowUpdate row_update(
    const OptimizerSpec& optimizer,
    const UpdateMoment& moment) {
  return std::visit(
      [&]<class Spec>(const Spec& spec) {
        RowUpdate update{
            .stages = stages(spec, moment.learning_rate),
            .accumulate = spec.use_gradient_accumulation,
            .sweep = !is_lazy(spec)};
        if constexpr (std::same_as<Spec, CustomOptimizer>) {
          TORCH_INTERNAL_ASSERT(false, "custom rules have no kernel");
        } else {
          update.rule = rule(spec, moment);
        }
        return update;
      },
      optimizer);
}

bool accumulates_duplicates(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) { return spec.use_gradient_accumulation; },
      optimizer);
}

int64_t gradient_accumulation_steps_of(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) { return spec.gradient_accumulation_steps; },
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
