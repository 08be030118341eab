// SPDX-License-Identifier: Apache-2.0
// The parts that all specs share. The source of each spec is in optim/optimizers/.
#include <tessera/optim/optimizer.h>

#include "optim/common_options.h"
#include "optim/optimizer_definition.h"
#include "optim/row_update.h"
#include "src/common/check.h"
#include "src/common/class_name.h"

#include <c10/util/Type.h>

#include <limits>

namespace tessera::optim {

using detail::OptimizerVariant;

namespace {

// `spec` points to one of these types, and is moved from.
template <class... Specs>
std::shared_ptr<const OptimizerVariant> held(
    std::in_place_type_t<std::variant<Specs...>> /*all*/,
    const std::type_info& type,
    void* spec) {
  std::shared_ptr<const OptimizerVariant> result;
  const auto hold = [&]<class Spec>(std::in_place_type_t<Spec> /*of*/) {
    if (type == typeid(Spec)) {
      result = std::make_shared<const OptimizerVariant>(
          std::move(*static_cast<Spec*>(spec)));
    }
  };
  (hold(std::in_place_type<Specs>), ...);
  TESSERA_CHECK_TYPE(
      result != nullptr,
      "[OptimizerSpec] expected a spec such as optim::Adam, but got a {}, which may be derived from one. Pass the spec itself.",
      c10::demangle(type.name()));
  return result;
}

void check_limits(
    const char* option,
    const std::optional<double>& low,
    const std::optional<double>& high,
    const std::string& where) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double min = low.value_or(-kInfinity);
  const double max = high.value_or(kInfinity);
  TESSERA_CHECK_VALUE(
      min <= max,
      "{0} {1}_min must be <= {1}_max, but got {2} and {3}.",
      where,
      option,
      min,
      max);
  // A minimum of infinity, or a maximum of -infinity, would make every value infinite.
  TESSERA_CHECK_VALUE(
      static_cast<float>(min) < kInfinity &&
          static_cast<float>(max) > -kInfinity,
      "{0} {1}_min must be < infinity in float32, and {1}_max > -infinity, but got {2} and {3}. Leave the limit unset, or set a number that float32 can hold.",
      where,
      option,
      min,
      max);
}

void validate(const CommonOptions& options, const std::string& where) {
  options.learning_rate.validate(where);
  check_limits(
      "clip_weight", options.clip_weight_min, options.clip_weight_max, where);
  check_limits(
      "clip_gradient",
      options.clip_gradient_min,
      options.clip_gradient_max,
      where);
  TESSERA_CHECK_VALUE(
      options.use_gradient_accumulation || !options.clips_gradient(),
      "{} clip_gradient_min and clip_gradient_max need use_gradient_accumulation = true, because they limit the sum of a row's gradients. Unset them, or set use_gradient_accumulation = true.",
      where);
  TESSERA_CHECK_VALUE(
      options.use_gradient_accumulation || options.is_lazy,
      "{} updating all rows (lazy = false, lazy_adam = false) needs use_gradient_accumulation = true, because a step then updates each row exactly once. Set it, or set lazy = true (lazy_adam = true).",
      where);
  TESSERA_CHECK_VALUE(
      options.gradient_accumulation_steps >= 1,
      "{} gradient_accumulation_steps must be >= 1, but got {}. Set it to 1 to update in every step.",
      where,
      options.gradient_accumulation_steps);
  TESSERA_CHECK_VALUE(
      options.use_gradient_accumulation ||
          options.gradient_accumulation_steps == 1,
      "{} gradient_accumulation_steps > 1 needs use_gradient_accumulation = true, because it takes the mean of the sums of a row's gradients. Set it, or set gradient_accumulation_steps = 1.",
      where);
  TESSERA_CHECK_VALUE(
      is_finite_float(options.weight_decay_factor.value_or(0.0)),
      "{} weight_decay_factor must be finite in float32, but got {}.",
      where,
      options.weight_decay_factor.value_or(0.0));
}

// The steps of a kernel before and after the rule.
kernels::RowStages row_stages(
    const CommonOptions& options,
    double learning_rate) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto limit = [](const std::optional<double>& value, float otherwise) {
    return value ? static_cast<float>(*value) : otherwise;
  };
  return {
      .clip_gradient = options.clips_gradient(),
      .clip_gradient_min = limit(options.clip_gradient_min, -kInfinity),
      .clip_gradient_max = limit(options.clip_gradient_max, kInfinity),
      .weight_decay = static_cast<float>(options.weight_decay(learning_rate)),
      .clip_weight = options.clips_weight(),
      .clip_weight_min = limit(options.clip_weight_min, -kInfinity),
      .clip_weight_max = limit(options.clip_weight_max, kInfinity)};
}

}  // namespace

OptimizerSpec::OptimizerSpec() {
  static const auto sgd = std::make_shared<const OptimizerVariant>(SGD{});
  spec_ = sgd;
}

// std::variant loses its value if an exception interrupts a change of its type.
OptimizerSpec::OptimizerSpec(const std::type_info& type, void* spec) {
  if (type == typeid(OptimizerVariant)) {
    spec_ = std::make_shared<const OptimizerVariant>(
        std::move(*static_cast<OptimizerVariant*>(spec)));
  } else {
    spec_ = held(std::in_place_type<AllSpecs>, type, spec);
  }
  TESSERA_CHECK_VALUE(
      !spec_->valueless_by_exception(),
      "[OptimizerSpec] expected a variant that holds a spec, but got one without a value, because an exception interrupted its assignment. Assign a spec to it.");
}

const void* OptimizerSpec::find(const std::type_info& type) const {
  return std::visit(
      [&]<class Spec>(const Spec& spec) -> const void* {
        return type == typeid(Spec) ? &spec : nullptr;
      },
      *spec_);
}

const OptimizerVariant& OptimizerSpec::variant() const& {
  return *spec_;
}

OptimizerVariant OptimizerSpec::variant() && {
  return *spec_;  // copies of the OptimizerSpec share it
}

bool OptimizerSpec::operator==(const OptimizerSpec& other) const {
  return *spec_ == *other.spec_;
}

std::string name_of(const OptimizerSpec& optimizer) {
  return class_name_of(optimizer.variant());
}

void validate(const OptimizerSpec& optimizer, const std::string& where) {
  const std::string prefix = where + " " + name_of(optimizer) + ":";
  validate(common_options(optimizer), prefix);
  std::visit(
      [&](const auto& spec) {
        definition_of(spec)->validate(RangeChecks(prefix));
      },
      optimizer.variant());
}

bool sweeps_all_rows(const OptimizerSpec& optimizer) {
  return !common_options(optimizer).is_lazy;
}

std::vector<SlotSpec> slots_of(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) { return definition_of(spec)->slots(); },
      optimizer.variant());
}

const SlotCreation& slot_creation_of(const OptimizerSpec& optimizer) {
  return common_options(optimizer).slot_creation;
}

RowUpdate row_update(
    const OptimizerSpec& optimizer,
    const StepContext& context) {
  const CommonOptions options = common_options(optimizer);
  return {
      .rule = std::visit(
          [&](const auto& spec) {
            return definition_of(spec)->row_rule(context);
          },
          optimizer.variant()),
      .stages = row_stages(options, context.learning_rate),
      .accumulate = options.use_gradient_accumulation,
      .sweep = !options.is_lazy};
}

bool accumulates_duplicates(const OptimizerSpec& optimizer) {
  return common_options(optimizer).use_gradient_accumulation;
}

int64_t gradient_accumulation_steps_of(const OptimizerSpec& optimizer) {
  return common_options(optimizer).gradient_accumulation_steps;
}

const LearningRate& learning_rate_of(const OptimizerSpec& optimizer) {
  return common_options(optimizer).learning_rate;
}

}  // namespace tessera::optim
