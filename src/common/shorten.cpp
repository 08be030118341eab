// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/shorten.h>

#include "src/common/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace tessera {

namespace {

constexpr size_t kMaxShown = 200;
constexpr size_t kShownBeginning = 120;
constexpr size_t kShownEnd = 40;

// Whether byte i continues a UTF-8 character. A message must not split a character.
bool is_within_character(std::string_view text, size_t i) {
  return (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
}

}  // namespace

std::string shorten(std::string_view name) {
  std::string shown(name.substr(0, kMaxShown));
  if (name.size() > kMaxShown) {
    constexpr size_t kMaxMoved = 3;  // bytes of a character after its first
    size_t begin = kShownBeginning;
    while (begin > kShownBeginning - kMaxMoved &&
           is_within_character(name, begin)) {
      --begin;
    }
    size_t end = name.size() - kShownEnd;
    while (end < name.size() - kShownEnd + kMaxMoved &&
           is_within_character(name, end)) {
      ++end;
    }
    shown = fmt::format(
        "{} [... {} bytes ...] {}",
        name.substr(0, begin),
        name.size(),
        name.substr(end));
  }
  for (size_t i = shown.find('\0'); i != std::string::npos;
       i = shown.find('\0', i)) {
    shown.replace(i, 1, "\\0");
  }
  return shown;
}

std::string shorten_all(const std::vector<std::string>& names) {
  constexpr size_t kMaxListed = 100;
  const size_t listed = std::min(names.size(), kMaxListed);
  const std::string list = join_names(std::span(names).first(listed), shorten);
  return listed == names.size()
      ? list
      : fmt::format("{} and {} more", list, names.size() - listed);
}

}  // namespace tessera
