// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tessera::data {

/// Parses a whole text as a float32, without spaces or a plus sign. A number that is too
/// small for float32 is 0 or denormal. Returns false for any other text, and for a finite
/// number that is too large.
bool parse_float(std::string_view text, float& value);

}  // namespace tessera::data
