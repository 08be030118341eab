// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

namespace tessera::serving {

/// Errors:  std::invalid_argument for an option that is out of range.
void check_options(const Reader* reader, const ServerOptions& options);

}  // namespace tessera::serving
