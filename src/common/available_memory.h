// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace tessera {

/// The memory that the system can give without swapping, or nullopt if it does not tell.
inline std::optional<size_t> available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  size_t kibibytes = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> name >> kibibytes && name == "MemAvailable:") {
      return kibibytes << 10;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
