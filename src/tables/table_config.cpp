// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/table_config.h>

#include <tessera/common/shorten.h>
#include <tessera/optim/optimizers/custom_optimizer.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "src/common/check.h"

namespace tessera {

namespace {

// The kernels take ids as uint32. The largest uint32 stands for a row of zeros.
constexpr int64_t kMaxVocabulary =
    static_cast<int64_t>(std::numeric_limits<uint32_t>::max()) - 1;

using NamedDtype = std::pair<at::ScalarType, const char*>;
constexpr std::array kDtypes{
    NamedDtype{at::kFloat, "float32"},
    NamedDtype{at::kBFloat16, "bfloat16"},
    NamedDtype{at::kHalf, "float16"},
    NamedDtype{at::kChar, "int8"}};

// Whether the rule was read from JSON, as a name without a function. The function may be
// set until a layer is made, which validates the rule again.
bool is_placeholder(const optim::OptimizerSpec& optimizer) {
  const auto* custom = optimizer.get_if<optim::CustomOptimizer>();
  return custom != nullptr && custom->rule.is_set() &&
      custom->rule.function() == nullptr;
}

}  // namespace

std::string to_string(at::ScalarType dtype) {
  const auto found = std::ranges::find(kDtypes, dtype, &NamedDtype::first);
  TESSERA_CHECK_VALUE(
      found != kDtypes.end(),
      "[TableConfig] dtype must be kFloat, kBFloat16, kHalf or kChar, but got k{}. Set it to one of these.",
      c10::toString(dtype));
  return found->second;
}

at::ScalarType dtype_from_string(std::string_view name) {
  const auto found = std::ranges::find(kDtypes, name, &NamedDtype::second);
  TESSERA_CHECK_VALUE(
      found != kDtypes.end(),
      "[TableConfig] dtype must be one of float32, bfloat16, float16, int8, but got '{}'. Use one of these names.",
      shorten(name));
  return found->first;
}

void validate(const QuantizationConfig& config, const std::string& where) {
  TESSERA_CHECK_VALUE(
      config.num_buckets >= 2,
      "{} quantization: num_buckets must be >= 2, but got {}. Use more buckets.",
      where,
      config.num_buckets);
  TESSERA_CHECK_VALUE(
      std::isfinite(static_cast<float>(config.lower)) &&
          std::isfinite(static_cast<float>(config.upper)) &&
          static_cast<float>(config.lower) < static_cast<float>(config.upper),
      "{} quantization: lower and upper must be finite in float32, and lower < upper, but got {} and {}. Correct these bounds.",
      where,
      config.lower,
      config.upper);
  const double step = (config.upper - config.lower) /
      static_cast<double>(config.num_buckets - 1);
  TESSERA_CHECK_VALUE(
      static_cast<float>(step) > 0.0F &&
          std::isfinite(static_cast<float>(config.upper - config.lower)),
      "{} quantization: the step (upper - lower) / (num_buckets - 1) must be a positive float32, but is {}. Use fewer buckets or other bounds.",
      where,
      step);
}

TablePtr make_table(TableConfig config) {
  validate(config);
  return std::make_shared<const TableConfig>(std::move(config));
}

void validate(const TableConfig& config) {
  const std::string where = "[TableConfig '" + shorten(config.name) + "']";
  if (config.keys) {
    TESSERA_CHECK_VALUE(
        config.vocabulary_size == 0,
        "{} vocabulary_size must be 0 if keys are set, but got {}. Set only keys.capacity.",
        where,
        config.vocabulary_size);
    validate(*config.keys, where);
  }
  TESSERA_CHECK_VALUE(
      config.keys ||
          (config.vocabulary_size >= 1 &&
           config.vocabulary_size <= kMaxVocabulary),
      "{} vocabulary_size must be in [1, {}], but got {}. Set it to the number of distinct ids, or set keys.",
      where,
      kMaxVocabulary,
      config.vocabulary_size);
  TESSERA_CHECK_VALUE(
      config.dim >= 1,
      "{} dim must be >= 1, but got {}. Set dim to the width of one embedding row.",
      where,
      config.dim);
  TESSERA_CHECK_VALUE(
      config.dim <= std::numeric_limits<int64_t>::max() / 8 / config.max_rows(),
      "{} a table must fit into memory, but {} rows of {} values are more than any machine can hold. Lower one of them.",
      where,
      config.max_rows(),
      config.dim);
  TESSERA_CHECK_VALUE(
      config.zero_rows >= 0 && config.zero_rows <= config.vocabulary_size,
      "{} zero_rows must be in [0, {}]{}, but got {}. Set it to the number of ids of missing and unknown values.",
      where,
      config.vocabulary_size,
      config.keys ? " with keys" : "",
      config.zero_rows);
  TESSERA_CHECK_VALUE(
      std::ranges::count(kDtypes, config.dtype, &NamedDtype::first) == 1,
      "{} dtype must be kFloat, kBFloat16, kHalf or kChar, but got k{}. Set it to one of these.",
      where,
      c10::toString(config.dtype));
  TESSERA_CHECK_VALUE(
      config.slot_dtype == at::kFloat || config.slot_dtype == at::kBFloat16,
      "{} slot_dtype must be kFloat or kBFloat16, but got k{}. Set it to one of these.",
      where,
      c10::toString(config.slot_dtype));
  if (config.initializer) {
    validate(*config.initializer, where);
  }
  if (config.optimizer && !is_placeholder(*config.optimizer)) {
    optim::validate(*config.optimizer, where);
  }
  if (config.quantization) {
    validate(*config.quantization, where);
  }
}

}  // namespace tessera
