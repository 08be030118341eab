// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace tessera::data {

/// Parses a whole text as a float32, without spaces or a plus sign. A number that is too
/// small for float32 is 0 or denormal. Returns false for any other text, and for a finite
/// number that is too large.
inline bool parse_float(std::string_view text, float& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && stop == end) {
    // Only strtof says whether the number is too large or too small.
    static const locale_t c_locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
    value = ::strtof_l(std::string(text).c_str(), nullptr, c_locale);
    return std::abs(value) < 1;
  }
  return error == std::errc() && stop == end;
}

}  // namespace tessera::data
