// SPDX-License-Identifier: Apache-2.0
#include "src/common/lookup_worker.h"

#include "src/common/check.h"
#include "src/common/parallel.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace tessera {

void check_lookup_threads(int64_t threads, const std::string& where) {
  constexpr int64_t kMaxThreads = 4096;
  TESSERA_CHECK_VALUE(
      threads >= 0 && threads <= kMaxThreads,
      "{} lookup_threads must be in [0, {}], but got {}. Set it to 0 to use as many threads as LibTorch.",
      where,
      kMaxThreads,
      threads);
}

ThreadOwner::ThreadOwner() : process_(::getpid()) {}

bool ThreadOwner::is_this_process() const {
  return process_ == ::getpid();
}

void ThreadOwner::check_may_wait() const {
  TESSERA_CHECK(
      is_this_process(),
      "[LookupWorker] expected a call in process {}, whose thread runs the lookups in the background, but got one in its forked child {}, which does not have that thread. Fork while no lookup runs in the background and call forward() in the child, or construct the layer in the child.",
      process_,
      ::getpid());
}

struct LookupWorker::Thread {
  explicit Thread(int64_t threads)
      : thread([this, threads] { run(threads); }) {}

  ~Thread() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      is_closing = true;
    }
    changed.notify_all();
    thread.join();
  }

  void run(int64_t threads) {
    set_thread_count(threads);
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return is_closing || !jobs.empty(); });
      if (jobs.empty()) {
        return;
      }
      const std::function<void()>& job = jobs.front();
      lock.unlock();
      job();
      lock.lock();
      jobs.pop_front();
      --unfinished;
      changed.notify_all();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;  // the first is running
  bool is_closing = false;
  // The number of jobs. A forked child reads it without the mutex, which may be locked
  // forever there.
  std::atomic<int64_t> unfinished = 0;
  std::thread thread;  // the last member, because it uses the others
};

LookupWorker::LookupWorker(int64_t threads)
    : thread_(
          std::make_unique<Thread>(threads > 0 ? threads : thread_count())) {}

LookupWorker::~LookupWorker() {
  if (!owner_.is_this_process()) {
    // The thread does not exist here. Joining it would wait forever, so leak it.
    (void)thread_.release();
  }
}

void LookupWorker::push(std::function<void()> job) {
  {
    const std::lock_guard<std::mutex> lock(thread_->mutex);
    thread_->jobs.push_back(std::move(job));
    ++thread_->unfinished;
  }
  thread_->changed.notify_all();
}

void LookupWorker::wait_idle() {
  if (!owner_.is_this_process() && thread_->unfinished == 0) {
    return;
  }
  owner_.check_may_wait();
  std::unique_lock<std::mutex> lock(thread_->mutex);
  thread_->changed.wait(lock, [&] { return thread_->jobs.empty(); });
}

bool LookupWorker::is_current() const {
  return std::this_thread::get_id() == thread_->thread.get_id();
}

}  // namespace tessera
