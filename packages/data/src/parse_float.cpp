// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/parse_float.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <system_error>

namespace tessera::data {

namespace {

// Whether a number that is out of the range of double is too small for it. Only its first
// digit and its exponent matter.
bool is_too_small(std::string_view text) {
  const size_t end = std::min(text.find_first_of("eE"), text.size());
  const size_t point = std::min(text.find('.'), end);
  const size_t first = text.find_first_of("123456789");
  int64_t exponent = 0;
  if (end < text.size()) {
    const bool is_signed = text[end + 1] == '+';  // which from_chars can't read
    const std::string_view digits = text.substr(end + (is_signed ? 2 : 1));
    const auto result =
        std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (result.ec != std::errc()) {
      return digits.starts_with('-');
    }
  }
  // Before the point, `first` has the power point - first - 1.
  const auto power =
      static_cast<int64_t>(point) - static_cast<int64_t>(first) - 1;
  return exponent < -power;
}

}  // namespace

bool parse_float(std::string_view text, float& value) {
  const char* end = text.data() + text.size();
  auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc::result_out_of_range || result.ptr != end) {
    return result.ec == std::errc() && result.ptr == end;
  }
  double precise = 0;
  result = std::from_chars(text.data(), end, precise);
  if (result.ec == std::errc::result_out_of_range) {
    precise = !is_too_small(text) ? std::numeric_limits<double>::infinity()
        : text.starts_with('-')   ? -0.0
                                  : 0.0;
  }
  value = static_cast<float>(precise);
  return precise > -1 && precise < 1;
}

}  // namespace tessera::data
