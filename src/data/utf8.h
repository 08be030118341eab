// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tessera {

/// Whether JSON can have the text as a string.
bool is_utf8(const std::string& text);

}  // namespace tessera
