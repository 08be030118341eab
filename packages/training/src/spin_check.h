// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace tessera::training {

/// The nanoseconds for which threads of this process were ready to run, but had no core.
/// nullopt: the system does not tell. Threads that have ended do not count.
std::optional<int64_t> time_without_core();

/// Warns, once per process, if its threads wait for cores while idle threads of OpenMP may
/// spin. fit() has one. Each step reads a clock, and some steps read the waiting times.
class SpinCheck {
 public:
  /// Begins to measure, unless the environment says how long idle threads spin, or there is
  /// only one thread.
  void begin();
  void end_step() {
    if (is_on_ && Clock::now() - since_ >= window_) {
      check();
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  void check();

  bool is_on_ = false;
  Clock::time_point since_ = {};
  Clock::duration window_ = std::chrono::seconds(2);
  int64_t waited_ = 0;  // the nanoseconds waited until `since_`
};

}  // namespace tessera::training
