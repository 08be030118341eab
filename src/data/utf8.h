// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tessera::data {

/// Whether the text is valid UTF-8, so that JSON can store it: no overlong forms, no
/// surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace tessera::data
