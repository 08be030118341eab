// SPDX-License-Identifier: Apache-2.0
#include "src/common/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tessera {

namespace {

// The number of characters in UTF-8 text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  }));
}

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

std::string megabytes(int64_t bytes) {
  constexpr double kMegabyte = 1024.0 * 1024.0;
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMegabyte);
}

std::string align(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths;
  for (const auto& line : lines) {
    widths.resize(std::max(widths.size(), line.size()), 0);
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(line[i]));
    }
  }
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (size_t i = 0; i < line.size(); ++i) {
      row += line[i];
      row.append(widths[i] + 2 - width_of(line[i]), ' ');
    }
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

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
