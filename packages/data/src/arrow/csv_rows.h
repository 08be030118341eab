// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace tessera::data {

inline bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

/// The position of the first newline from `begin` on, or the size of the text.
inline size_t find_newline(std::string_view text, size_t begin) {
  const auto* found =
      std::find_if(text.data() + begin, text.data() + text.size(), is_newline);
  return static_cast<size_t>(found - text.data());
}

/// Where a scan of a row is.
enum class RowPhase {
  kFieldBegin,
  kInField,
  kInQuotes,
  /// After a quote that closes a quoted part, unless another quote follows.
  kAfterQuote
};

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
  RowPhase phase = RowPhase::kFieldBegin;  // at `end`
};

/// Finds the end of the first row of the text, as Arrow does: a field that begins with
/// a quote may have newlines, and two quotes in it stand for one. If `quote` is '\0',
/// no character is a quote. If the row does not end in the text, a second call with a
/// longer text can continue, with `end` and `phase` of the first result as `begin` and
/// `phase`.
inline RowScan scan_row(
    std::string_view text,
    char delimiter,
    char quote,
    size_t begin = 0,
    RowPhase phase = RowPhase::kFieldBegin) {
  using enum RowScan::State;
  using enum RowPhase;
  size_t i = begin;
  while (true) {
    if (phase == kInQuotes) {
      i = text.find(quote, i);
      if (i == std::string_view::npos) {
        return {.state = kOpenQuote, .end = text.size(), .phase = phase};
      }
      phase = kAfterQuote;
      ++i;
    }
    if (i == text.size()) {
      return {.state = kPartial, .end = i, .phase = phase};
    }
    const char c = text[i];
    if (is_newline(c)) {
      return {.state = kComplete, .end = i, .phase = phase};
    }
    const bool is_quote = quote != '\0' && c == quote;
    if (phase == kAfterQuote && !is_quote && c != delimiter) {
      return {.state = kTextAfterQuote, .end = i, .phase = phase};
    }
    // After the second quote of a pair, the quoted part continues.
    phase = c == delimiter              ? kFieldBegin
        : is_quote && phase != kInField ? kInQuotes
                                        : kInField;
    ++i;
  }
}

}  // namespace tessera::data
