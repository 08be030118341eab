// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/spin_check.h"

#include "src/common/parallel.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace tessera::training {

namespace {

// The share of the elapsed time that all threads together may wait for a core.
constexpr double kMaxShare = 0.2;
constexpr std::chrono::seconds kMaxWindow{16};

std::atomic<bool> has_warned = false;

bool may_spin() {
  return std::getenv("OMP_WAIT_POLICY") == nullptr &&
      std::getenv("GOMP_SPINCOUNT") == nullptr && thread_count() > 1;
}

}  // namespace

std::optional<int64_t> time_without_core() {
  std::error_code error;
  int64_t total = 0;
  bool is_known = false;
  for (auto thread =
           std::filesystem::directory_iterator("/proc/self/task", error);
       !error && thread != std::filesystem::directory_iterator();
       thread.increment(error)) {
    // The file has the time on a core, the time without one, and a count.
    int64_t running = 0;
    int64_t waiting = 0;
    std::ifstream file(thread->path() / "schedstat");
    if (file >> running >> waiting) {
      total += waiting;
      is_known = true;
    }
  }
  return is_known ? std::optional(total) : std::nullopt;
}

void SpinCheck::begin() {
  const std::optional<int64_t> waited =
      may_spin() && !has_warned ? time_without_core() : std::nullopt;
  is_on_ = waited.has_value();
  waited_ = waited.value_or(0);
  since_ = Clock::now();
}

void SpinCheck::check() {
  const std::optional<int64_t> waited = time_without_core();
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> time = now - since_;
  const double seconds =
      static_cast<double>(waited.value_or(0) - waited_) * 1e-9;
  if (seconds > kMaxShare * time.count() && !has_warned.exchange(true)) {
    TORCH_WARN(fmt::format(
        "[fit] the threads of this program waited {:.1f} s for a core in "
        "{:.1f} s, because other programs or too many threads use the cores. "
        "Meanwhile, idle threads of LibTorch spin, which can make steps ten "
        "times as slow. Call tessera::limit_thread_spins(argv) first in "
        "main(), or set the environment variable GOMP_SPINCOUNT=3000 before "
        "the program starts. See docs/training.md.",
        seconds,
        time.count()));
  }
  is_on_ = !has_warned && waited.has_value();
  since_ = now;
  waited_ = waited.value_or(0);
  window_ = std::min<Clock::duration>(2 * window_, kMaxWindow);
}

}  // namespace tessera::training
