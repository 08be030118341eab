// SPDX-License-Identifier: Apache-2.0
#include "src/common/available_memory.h"

#include <fstream>
#include <sstream>
#include <string>

namespace tessera {

std::optional<size_t> available_memory() {
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
