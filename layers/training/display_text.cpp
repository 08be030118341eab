// SPDX-License-Identifier: Apache-2.0
#include "layers/training/display_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>

namespace tessera::training {

namespace {

// One code point at the start of a text, and its number of bytes. Negative code points
// stand for an invalid byte.
struct CodePoint {
  utf8proc_int32_t code = -1;
  size_t bytes = 1;
};

CodePoint first_of(std::string_view text) {
  CodePoint first;
  const utf8proc_ssize_t bytes = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()),
      &first.code);
  return bytes > 0 ? CodePoint{first.code, static_cast<size_t>(bytes)}
                   : CodePoint{};
}

bool is_space(utf8proc_int32_t code) {
  constexpr utf8proc_int32_t kLineSeparator = 0x2028;
  constexpr utf8proc_int32_t kParagraphSeparator = 0x2029;
  return code == '\t' || code == '\n' || code == '\r' ||
      code == kLineSeparator || code == kParagraphSeparator;
}

// The last two code points of each plane, such as U+FFFE, are no characters.
bool is_shown(utf8proc_int32_t code) {
  return code >= 0 && (code & 0xfffe) != 0xfffe &&
      utf8proc_category(code) != UTF8PROC_CATEGORY_CC;
}

// A character as a reader sees it: a code point and those that are joined to it.
struct Cluster {
  size_t bytes = 0;
  int64_t width = 0;
};

Cluster next_cluster(std::string_view text) {
  constexpr utf8proc_int32_t kEmojiStyle = 0xfe0f;
  Cluster cluster;
  utf8proc_int32_t previous = -1;
  utf8proc_int32_t state = 0;
  while (cluster.bytes < text.size()) {
    const CodePoint next = first_of(text.substr(cluster.bytes));
    if (cluster.bytes > 0 &&
        (next.code < 0 || previous < 0 ||
         utf8proc_grapheme_break_stateful(previous, next.code, &state))) {
      break;
    }
    cluster.bytes += next.bytes;
    const int64_t width =
        next.code < 0 ? 1 : std::max(0, utf8proc_charwidth(next.code));
    cluster.width =
        std::max(cluster.width, next.code == kEmojiStyle ? 2 : width);
    previous = next.code;
  }
  return cluster;
}

}  // namespace

std::string display_text(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const CodePoint next = first_of(text);
    if (is_space(next.code)) {
      shown += ' ';
    } else if (is_shown(next.code)) {
      shown += text.substr(0, next.bytes);
    } else {
      shown += "\xef\xbf\xbd";  // U+FFFD
    }
    text.remove_prefix(next.bytes);
  }
  return shown;
}

int64_t display_width(std::string_view text) {
  int64_t width = 0;
  while (!text.empty()) {
    const Cluster cluster = next_cluster(text);
    width += cluster.width;
    text.remove_prefix(cluster.bytes);
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
    const Cluster cluster = next_cluster(std::string_view(text).substr(kept));
    if (columns + cluster.width > width) {
      break;
    }
    kept += cluster.bytes;
    columns += cluster.width;
  }
  return text.substr(0, kept) + "\xe2\x80\xa6";  // U+2026
}

}  // namespace tessera::training
