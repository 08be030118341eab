// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/error_log.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>

namespace tessera::serving {

void log_error(std::string_view problem) {
  using Clock = std::chrono::steady_clock;
  static std::mutex mutex;
  static Clock::time_point next;
  static int64_t skipped = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  const Clock::time_point now = Clock::now();
  if (now < next) {
    ++skipped;
    return;
  }
  next = now + std::chrono::seconds(1);
  std::fprintf(
      stderr,
      "[Server] %.*s",
      static_cast<int>(problem.size()),
      problem.data());
  if (skipped != 0) {
    std::fprintf(
        stderr, " (and %lld more problems)", static_cast<long long>(skipped));
  }
  std::fputc('\n', stderr);
  skipped = 0;
}

}  // namespace tessera::serving
