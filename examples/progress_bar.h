// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

/// Progress on standard error: one bar that redraws itself on a terminal, a
/// plain line per epoch elsewhere.
class ProgressBar {
 public:
  /// `measure` is what update() gets.
  ProgressBar(
      int64_t epochs,
      int64_t steps_per_epoch,
      std::string measure = "rmse")
      : steps_per_epoch_(steps_per_epoch),
        steps_(epochs * steps_per_epoch),
        measure_(std::move(measure)) {}

  /// After each step: how many are done, and the measure so far.
  void update(int64_t done, double value) {
    const bool ends_epoch = done % steps_per_epoch_ == 0;
    if (is_terminal_ ? done % 10 != 0 && !ends_epoch : !ends_epoch) {
      return;
    }
    const double share =
        static_cast<double>(done) / static_cast<double>(steps_);
    const double left = seconds() * (1.0 - share) / share;
    const int64_t epoch = (done + steps_per_epoch_ - 1) / steps_per_epoch_;
    if (is_terminal_) {
      const auto filled = static_cast<size_t>(share * kWidth);
      const std::string bar =
          std::string(filled, '#') + std::string(kWidth - filled, '.');
      std::fprintf(
          stderr,
          "\r[%s] epoch %2ld  %s %.4f  ETA %3.0f s ",
          bar.c_str(),
          static_cast<long>(epoch),
          measure_.c_str(),
          value,
          left);
      if (done == steps_) {
        std::fprintf(stderr, "\n");
      }
    } else {
      std::fprintf(
          stderr,
          "epoch %2ld  training %s %.4f  %.1f s, %.0f s left\n",
          static_cast<long>(epoch),
          measure_.c_str(),
          value,
          seconds(),
          left);
    }
  }

  double seconds() const {
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - begin_;
    return elapsed.count();
  }

 private:
  static constexpr size_t kWidth = 30;

  int64_t steps_per_epoch_;
  int64_t steps_;
  std::string measure_;
  bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
};
