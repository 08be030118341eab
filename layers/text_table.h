// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Lines of cells, with columns as wide as their widest cell.
std::string align(const std::vector<std::vector<std::string>>& lines);

/// "1.5 MiB"
std::string megabytes(int64_t bytes);

}  // namespace tessera
