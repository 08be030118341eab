// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Formats lines of cells as text. Each column is as wide as its widest cell.
std::string align(const std::vector<std::vector<std::string>>& lines);

/// A size as text, such as "1.5 MiB".
std::string megabytes(int64_t bytes);

struct CodePoint {
  uint32_t code = 0;
  size_t bytes = 1;
};

/// The code point at the start of a text that is not empty, or nothing if the text does
/// not begin with a valid one.
std::optional<CodePoint> first_code_point(std::string_view text);

/// Returns true if the text is valid UTF-8, so that JSON can store it. Such a text has no
/// overlong forms, no surrogates and nothing above U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace tessera
