// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tessera {

/// Errors:  c10::ValueError beginning with `where`, for no count of threads.
void check_lookup_threads(int64_t threads, const std::string& where);

/// Runs jobs one after another on a thread of its own.
class LookupWorker {
 public:
  /// `threads`: intra-op threads of a job; 0: as many as the caller has.
  explicit LookupWorker(int64_t threads);
  /// Waits for all jobs.
  ~LookupWorker();

  LookupWorker(const LookupWorker&) = delete;
  LookupWorker& operator=(const LookupWorker&) = delete;

  /// `job` must not throw: a std::packaged_task keeps what it throws.
  void submit(std::function<void()> job);

  /// Until all submitted jobs are done.
  void wait_idle();

  /// Whether the calling thread is the worker's.
  bool is_current() const {
    return std::this_thread::get_id() == thread_.get_id();
  }

 private:
  void run(int64_t threads);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // the first is running
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace tessera
