// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::data {

// Criteo's files have a reader of their own, because general ones are slower. With 2
// threads, make_csv_source() has 0.1 of CriteoReader's speed, and it needs Arrow. A
// special type for hexadecimal columns increased this to 0.3. A general reader without
// Arrow, which parsed each block once, took 2.4 times CriteoReader's CPU time.

/// The number of bytes after the line's end that parse_criteo_line() may read.
inline constexpr size_t kCriteoPadding = 16;
/// The shortest line has a digit, 39 tabs and a newline.
inline constexpr size_t kShortestCriteoLine = 41;

/// The memory of parsed examples. Column c of example r is at c * stride + r.
struct CriteoRows {
  float* labels = nullptr;
  int64_t* integers = nullptr;
  int64_t* categories = nullptr;
  int64_t stride = 0;
};

/// Parses a line that ends with a newline. Returns the position after the newline, or
/// nullptr if the line is malformed. The values of the row are then undefined.
const char* parse_criteo_line(
    const char* line,
    int64_t row,
    const CriteoRows& rows);

/// Describes what is wrong with a line, which is passed without its newline. Empty if
/// parse_criteo_line() accepts the line. That function is faster, but does not know the
/// reason. The fuzzer checks that both agree.
std::string criteo_line_problem(std::string_view line, size_t max_line_bytes);

}  // namespace tessera::data
