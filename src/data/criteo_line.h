// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::data {

/// parse_criteo_line() may look at this many bytes behind the line's end.
inline constexpr size_t kCriteoPadding = 16;
/// A line has at least a digit, 39 tabs and a newline.
inline constexpr size_t kShortestCriteoLine = 41;

/// Where examples go, column by column: column c of example r is at
/// c * stride + r.
struct CriteoRows {
  float* labels = nullptr;
  int64_t* integers = nullptr;
  int64_t* categories = nullptr;
  int64_t stride = 0;
};

/// Parses a line that ends with a newline. Returns what is after the newline, or
/// nullptr when the line is malformed, with anything in the row.
const char* parse_criteo_line(
    const char* line,
    int64_t row,
    const CriteoRows& rows);

/// What is wrong with a line, given without its newline; empty when nothing is.
/// It agrees with parse_criteo_line(), is slow, and knows all the reasons.
std::string criteo_line_problem(std::string_view line, size_t max_line_bytes);

}  // namespace tessera::data
