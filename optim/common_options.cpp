// SPDX-License-Identifier: Apache-2.0
#include "optim/common_options.h"

#include <tessera/optim/optimizers.h>

#include "optim/range_checks.h"
#include "src/common/check.h"

#include <limits>
#include <variant>

namespace tessera::optim {

namespace {

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

}  // namespace

CommonOptions common_options(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) { return common_options(spec); },
      optimizer.variant());
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

}  // namespace tessera::optim
