// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

/// Measures the largest memory that the program has had since this was made. Where Linux
/// does not reset the measure, it counts from the start of the program.
class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";
  }

  /// 0 if the system does not tell it.
  int64_t mebibytes() const {
    std::ifstream file("/proc/self/status");
    std::string name;
    int64_t kibibytes = 0;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      if (words >> name >> kibibytes && name == "VmHWM:") {
        return kibibytes >> 10;
      }
    }
    return 0;
  }
};
