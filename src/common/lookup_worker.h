// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/profile_scope.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace tessera {

/// Checks the option `lookup_threads`.
/// Errors:  c10::ValueError beginning with `where` if `threads` is not in [0, 4096].
void check_lookup_threads(int64_t threads, const std::string& where);

/// Records the process that has the threads of an object. A child that is forked later
/// has a copy of the object, but none of its threads.
class ThreadOwner {
 public:
  ThreadOwner();

  bool is_this_process() const;

  /// Errors:  c10::Error in a forked child, where waiting would never end.
  void check_may_wait() const;

 private:
  pid_t process_;
};

/// The future result of a job of a LookupWorker.
template <class T>
class JobResult {
 public:
  JobResult() = default;
  explicit JobResult(std::future<T> future) : future_(future.share()) {}

  bool valid() const {
    return future_.valid();
  }

  /// Waits for the job and returns its result.
  /// Errors:  whatever the job throws; c10::Error in a child that was forked before the
  ///          job was done.
  const T& get() const {
    const ProfileScope scope("tessera::wait_for_lookup");
    if (future_.wait_for(std::chrono::seconds(0)) !=
        std::future_status::ready) {
      owner_.check_may_wait();
    }
    return future_.get();
  }

 private:
  std::shared_future<T> future_;
  ThreadOwner owner_;
};

/// Runs jobs one after another on a thread of its own. A forked child can't use it.
class LookupWorker {
 public:
  /// `threads` is the number of intra-op threads of a job. 0 means as many as the
  /// caller has.
  explicit LookupWorker(int64_t threads);
  /// Waits for all jobs, but not in a forked child.
  ~LookupWorker();

  /// Appends a job. In a forked child, the job does not run, and its result is the
  /// error of check_may_submit().
  template <class Job>
  JobResult<std::invoke_result_t<Job&>> submit(Job job) {
    using Result = std::invoke_result_t<Job&>;
    const auto task = std::make_shared<std::packaged_task<Result()>>(
        [this, job = std::move(job)]() mutable {
          check_may_submit();
          return job();
        });
    JobResult<Result> result(task->get_future());
    if (owner_.is_this_process()) {
      push([task] { (*task)(); });
    } else {
      (*task)();
    }
    return result;
  }

  /// Errors:  c10::Error in a forked child.
  void check_may_submit() const {
    owner_.check_may_wait();
  }

  /// Waits until all submitted jobs are done.
  /// Errors:  c10::Error in a child that was forked before the jobs were done, because
  ///          locks that they held stay locked there.
  void wait_idle();

  /// Whether the calling thread is the worker's thread.
  bool is_current() const;

 private:
  struct Thread;

  void push(std::function<void()> job);

  ThreadOwner owner_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tessera
