// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace tessera::test {

/// The bytes of the process's memory without mapped files.
inline int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) {
      return std::stoll(line.substr(8)) * 1024;
    }
  }
  throw std::runtime_error("no RssAnon in /proc/self/status");
}

/// Samples the memory while it lives. The true peak may be higher.
class PeakMemory {
 public:
  PeakMemory() : begin_(anonymous_memory()), sampler_([this] { sample(); }) {}
  ~PeakMemory() {
    growth();
  }
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  /// Stops, and returns by how many bytes the memory grew at most.
  int64_t growth() {
    is_done_ = true;
    if (sampler_.joinable()) {
      sampler_.join();
      peak_ = std::max(peak_, anonymous_memory());
    }
    return peak_ - begin_;
  }

 private:
  void sample() {
    while (!is_done_) {
      peak_ = std::max(peak_, anonymous_memory());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  int64_t begin_;
  int64_t peak_ = begin_;
  std::atomic<bool> is_done_ = false;
  std::thread sampler_;  // last, because it uses the others
};

}  // namespace tessera::test
