// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/check.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace tessera::optim {

/// Whether float32 can hold the value, rounded. It can't hold 1e300, for example.
inline bool is_finite_float(double value) {
  return std::isfinite(static_cast<float>(value));
}

/// Checks of single options, whose messages all have the same form.
class RangeChecks {
 public:
  /// `where` begins the messages.
  explicit RangeChecks(std::string where) : where_(std::move(where)) {}

  const std::string& where() const {
    return where_;
  }

  /// For values that the kernels divide by: they are neither 0 nor subnormal in float32.
  void positive(const char* option, double value) const {
    using Limits = std::numeric_limits<float>;
    const bool holds = value >= Limits::min() && value <= Limits::max();
    check(holds, option, "> 0 and fit in float32", value);
  }
  void not_negative(const char* option, double value) const {
    const bool holds = is_finite_float(value) && value >= 0.0;
    check(holds, option, ">= 0 and finite in float32", value);
  }
  void in_unit_interval(const char* option, double value) const {
    check(value >= 0.0 && value <= 1.0, option, ">= 0 and <= 1", value);
  }
  void below_one(const char* option, double value) const {
    check(value >= 0.0 && value < 1.0, option, ">= 0 and < 1", value);
  }
  void finite(const char* option, double value) const {
    check(is_finite_float(value), option, "finite in float32", value);
  }

  /// Errors:  c10::ValueError unless `holds`. It says that the option must be `expected`,
  ///          but got `value`.
  void check(bool holds, const char* option, const char* expected, double value)
      const {
    TESSERA_CHECK_VALUE(
        holds,
        "{} {} must be {}, but got {}.",
        where_,
        option,
        expected,
        value);
  }
  /// The same for options that are not numbers; the message ends with `expected`.
  void require(bool holds, const char* option, const std::string& expected)
      const {
    TESSERA_CHECK_VALUE(holds, "{} {} must be {}", where_, option, expected);
  }

 private:
  std::string where_;
};

}  // namespace tessera::optim
