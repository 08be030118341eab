// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

namespace tessera {

/// The memory that the system can give without swapping, or nullopt if it does not tell.
std::optional<size_t> available_memory();

}  // namespace tessera
