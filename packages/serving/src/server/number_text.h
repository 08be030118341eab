// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <string>

namespace tessera::serving {

/// Appends the shortest text that a parser reads as the same float, or "null", because JSON
/// has no other numbers. A parser would read "-0" as an integer, which has no sign.
inline void append_number(std::string& text, float number) {
  if (!std::isfinite(number)) {
    text += "null";
    return;
  }
  constexpr size_t kMaxLength = 32;  // the longest is -1.17549435e-38
  std::array<char, kMaxLength> digits;
  const std::to_chars_result end =
      std::to_chars(digits.data(), digits.data() + digits.size(), number);
  text.append(digits.data(), end.ptr);
  if (number == 0.0F && std::signbit(number)) {
    text += ".0";
  }
}

}  // namespace tessera::serving
