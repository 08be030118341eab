// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Formats lines of cells as text. Each column is as wide as its widest cell.
std::string align(const std::vector<std::vector<std::string>>& lines);

/// A size as text, such as "1.5 MiB".
std::string megabytes(int64_t bytes);

}  // namespace tessera
