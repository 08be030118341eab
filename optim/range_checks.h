// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tessera::optim {

/// Whether float32 can hold the value, rounded. It can't hold 1e300, for example.
bool is_finite_float(double value);

/// Checks of single options, whose messages all have the same form.
class RangeChecks {
 public:
  /// `where` begins the messages.
  explicit RangeChecks(std::string where);

  const std::string& where() const {
    return where_;
  }

  /// For values that the kernels divide by: they are neither 0 nor subnormal in float32.
  void positive(const char* option, double value) const;
  void not_negative(const char* option, double value) const;
  void in_unit_interval(const char* option, double value) const;
  void below_one(const char* option, double value) const;
  void finite(const char* option, double value) const;

  /// Errors:  c10::ValueError unless `holds`. It says that the option must be `expected`,
  ///          but got `value`.
  void check(bool holds, const char* option, const char* expected, double value)
      const;
  /// The same for options that are not numbers; the message ends with `expected`.
  void require(bool holds, const char* option, const std::string& expected)
      const;

 private:
  std::string where_;
};

}  // namespace tessera::optim
