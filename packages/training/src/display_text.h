// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::training {

/// Makes text safe for one line of a terminal or a picture. The result is valid UTF-8.
/// Line breaks and tabs become spaces. U+FFFD takes the place of invalid bytes, of control
/// characters, and of code points that are no characters. XML does not allow some of these.
std::string display_text(std::string_view text);

/// The number of columns that a terminal with fixed-width characters needs for the result
/// of display_text(). Chinese characters and emoji need two. Accents that are code points
/// of their own count as one column, although they need none.
int64_t display_width(std::string_view text);

/// Shortens the result of display_text() to at most `width` >= 1 columns. A shortened
/// text ends with "…".
std::string cut_to_width(const std::string& text, int64_t width);

}  // namespace tessera::training
