// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// A shape of which some dimensions are not known yet: {2, std::nullopt}.
using PartialShape = std::vector<std::optional<int64_t>>;

/// "[2, ?]"
std::string to_string(const PartialShape& shape);

}  // namespace tessera
