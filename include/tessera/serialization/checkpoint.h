// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>

#include <string>
#include <vector>

namespace tessera {

/// Names of the complete checkpoints in a directory, oldest first; none for a
/// directory that does not exist.
std::vector<std::string> list_checkpoints(const std::string& directory);

}  // namespace tessera
