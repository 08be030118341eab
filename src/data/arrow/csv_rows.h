// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera::data {

inline bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

/// The result of scan_row().
struct RowScan {
  enum class State {
    /// `end` is the position of the newline after the row.
    kComplete,
    /// The text ends in the row.
    kPartial,
    /// The text ends in a quoted part of the row.
    kOpenQuote,
    /// `end` is the position of text after a closing quote.
    kTextAfterQuote
  };

  State state = State::kPartial;
  size_t end = 0;
};

/// Finds the end of the first row of the text, as Arrow does: a field that begins with a
/// quote may have newlines, and two quotes in it stand for one. If `quote` is '\0', no
/// character is a quote.
inline RowScan scan_row(std::string_view text, char delimiter, char quote) {
  using enum RowScan::State;
  bool is_field_begin = true;
  size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    if (is_newline(c)) {
      return {.state = kComplete, .end = i};
    }
    if (!is_field_begin || quote == '\0' || c != quote) {
      is_field_begin = c == delimiter;
      ++i;
      continue;
    }
    is_field_begin = false;
    // After the second quote of a pair, the quoted part continues.
    do {
      i = text.find(quote, i + 1);
      if (i == std::string_view::npos) {
        return {.state = kOpenQuote, .end = text.size()};
      }
      ++i;
    } while (i < text.size() && text[i] == quote);
    if (i < text.size() && text[i] != delimiter && !is_newline(text[i])) {
      return {.state = kTextAfterQuote, .end = i};
    }
  }
  return {.state = kPartial, .end = text.size()};
}

}  // namespace tessera::data
