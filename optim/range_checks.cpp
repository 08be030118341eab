// SPDX-License-Identifier: Apache-2.0
#include "optim/range_checks.h"

#include "src/common/check.h"

#include <cmath>
#include <limits>
#include <utility>

namespace tessera::optim {

bool is_finite_float(double value) {
  return std::isfinite(static_cast<float>(value));
}

RangeChecks::RangeChecks(std::string where) : where_(std::move(where)) {}

void RangeChecks::positive(const char* option, double value) const {
  using Limits = std::numeric_limits<float>;
  check(
      value >= Limits::min() && value <= Limits::max(),
      option,
      "> 0 and fit in float32",
      value);
}

void RangeChecks::not_negative(const char* option, double value) const {
  check(
      is_finite_float(value) && value >= 0.0,
      option,
      ">= 0 and finite in float32",
      value);
}

void RangeChecks::in_unit_interval(const char* option, double value) const {
  check(value >= 0.0 && value <= 1.0, option, ">= 0 and <= 1", value);
}

void RangeChecks::below_one(const char* option, double value) const {
  check(value >= 0.0 && value < 1.0, option, ">= 0 and < 1", value);
}

void RangeChecks::finite(const char* option, double value) const {
  check(is_finite_float(value), option, "finite in float32", value);
}

void RangeChecks::check(
    bool holds,
    const char* option,
    const char* expected,
    double value) const {
  TESSERA_CHECK_VALUE(
      holds, "{} {} must be {}, but got {}.", where_, option, expected, value);
}

void RangeChecks::require(
    bool holds,
    const char* option,
    const std::string& expected) const {
  TESSERA_CHECK_VALUE(holds, "{} {} must be {}", where_, option, expected);
}

}  // namespace tessera::optim
