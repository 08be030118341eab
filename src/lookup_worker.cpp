// SPDX-License-Identifier: Apache-2.0
#include "src/lookup_worker.h"

#include "src/parallel.h"

#include <c10/util/Exception.h>

#include <utility>

namespace tessera {

void check_lookup_threads(int64_t threads, const std::string& where) {
  constexpr int64_t kMostThreads = 4096;
  TORCH_CHECK_VALUE(
      threads >= 0 && threads <= kMostThreads,
      where,
      " lookup_threads must be in [0, ",
      kMostThreads,
      "], but got ",
      threads,
      ".");
}

LookupWorker::LookupWorker(int64_t threads)
    : thread_([this, count = threads > 0 ? threads : thread_count()] {
        run(count);
      }) {}

LookupWorker::~LookupWorker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LookupWorker::submit(std::function<void()> job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void LookupWorker::wait_idle() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty(); });
}

void LookupWorker::run(int64_t threads) {
  set_thread_count(threads);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_closing_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    const std::function<void()>& job = jobs_.front();
    lock.unlock();
    job();
    lock.lock();
    jobs_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace tessera
