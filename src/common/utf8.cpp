// SPDX-License-Identifier: Apache-2.0
#include "src/common/utf8.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera {

namespace {

// The number of bytes of a character with this first byte. 0 if it can't be a first byte.
size_t length_of(uint8_t first) {
  return first < 0x80 ? 1
      : first < 0xc0  ? 0
      : first < 0xe0  ? 2
      : first < 0xf0  ? 3
      : first < 0xf8  ? 4
                      : 0;
}

}  // namespace

std::optional<CodePoint> first_code_point(std::string_view text) {
  // The smallest code point that needs 0, 1, 2, 3 or 4 bytes.
  constexpr std::array<uint32_t, 5> kMinCodePoints{0, 0, 0x80, 0x800, 0x10000};
  const auto first = static_cast<uint8_t>(text.front());
  const size_t length = length_of(first);
  if (length == 0 || length > text.size()) {
    return std::nullopt;
  }
  uint32_t code = length == 1 ? first : first & (0x7fU >> length);
  for (const char byte : text.substr(1, length - 1)) {
    const auto bits = static_cast<uint8_t>(byte);
    if ((bits & 0xc0U) != 0x80) {
      return std::nullopt;
    }
    code = code << 6 | (bits & 0x3fU);
  }
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kMinCodePoints[length] || is_surrogate || code > 0x10ffff) {
    return std::nullopt;
  }
  return CodePoint{code, length};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto first = first_code_point(text);
    if (!first) {
      return false;
    }
    text.remove_prefix(first->bytes);
  }
  return true;
}

}  // namespace tessera
