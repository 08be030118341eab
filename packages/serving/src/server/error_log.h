// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tessera::serving {

/// Writes a problem of the server to stderr, once per second at most, so that a client
/// can't fill a disk with it.
void log_error(std::string_view problem);

}  // namespace tessera::serving
