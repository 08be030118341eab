// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/display_text.h"

#include "src/common/text.h"

#include <cstddef>

namespace tessera::training {

namespace {

bool is_space(uint32_t code) {
  constexpr uint32_t kLineSeparator = 0x2028;
  constexpr uint32_t kParagraphSeparator = 0x2029;
  return code == '\t' || code == '\n' || code == '\r' ||
      code == kLineSeparator || code == kParagraphSeparator;
}

// Control characters are not shown, nor are the last two code points of each plane,
// such as U+FFFE, which are not characters.
bool is_shown(uint32_t code) {
  const bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  return !is_control && (code & 0xfffe) != 0xfffe;
}

// Chinese, Japanese and Korean characters and emoji take two columns.
int64_t columns_of(uint32_t code) {
  const bool is_wide = (code >= 0x2e80 && code <= 0xa4cf) ||
      (code >= 0xac00 && code <= 0xd7a3) ||
      (code >= 0xf900 && code <= 0xfaff) ||
      (code >= 0xff00 && code <= 0xff60) ||
      (code >= 0x1f300 && code <= 0x3fffd);
  return is_wide ? 2 : 1;
}

// An invalid byte takes one column.
CodePoint first_of(std::string_view text) {
  return first_code_point(text).value_or(CodePoint{});
}

}  // namespace

std::string display_text(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const auto next = first_code_point(text);
    const size_t bytes = next ? next->bytes : 1;
    if (next && is_space(next->code)) {
      shown += ' ';
    } else if (next && is_shown(next->code)) {
      shown += text.substr(0, bytes);
    } else {
      shown += "\xef\xbf\xbd";  // U+FFFD
    }
    text.remove_prefix(bytes);
  }
  return shown;
}

int64_t display_width(std::string_view text) {
  int64_t width = 0;
  while (!text.empty()) {
    const CodePoint next = first_of(text);
    width += columns_of(next.code);
    text.remove_prefix(next.bytes);
  }
  return width;
}

std::string cut_to_width(const std::string& text, int64_t width) {
  if (display_width(text) <= width) {
    return text;
  }
  size_t kept = 0;
  int64_t columns = 1;  // the ellipsis
  while (kept < text.size()) {
    const CodePoint next = first_of(std::string_view(text).substr(kept));
    columns += columns_of(next.code);
    if (columns > width) {
      break;
    }
    kept += next.bytes;
  }
  return text.substr(0, kept) + "\xe2\x80\xa6";  // U+2026
}

}  // namespace tessera::training
