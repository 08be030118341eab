// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tessera::serving {

/// The text of page.html. The build makes its source file.
std::string_view page();

}  // namespace tessera::serving
