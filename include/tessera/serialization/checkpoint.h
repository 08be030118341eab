// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>

#include <string>
#include <vector>

namespace tessera {

/// Returns the names of the complete checkpoints in a directory, the oldest first. A
/// directory that does not exist has none.
std::vector<std::string> list_checkpoints(const std::string& directory);

}  // namespace tessera
