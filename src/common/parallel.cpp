// SPDX-License-Identifier: Apache-2.0
#include "src/common/parallel.h"

#include <ATen/Parallel.h>
#include <c10/util/ParallelGuard.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <exception>

#ifdef TESSERA_MARK_TASKS
#include <sanitizer/tsan_interface.h>
#endif

// LibTorch computes with the threads of GNU's OpenMP, which has these functions.
// at::parallel_for uses these threads only if the compiler is GCC. Clang's pragmas would
// start the threads of another OpenMP beside them.
extern "C" {
void GOMP_parallel(
    void (*run)(void*),
    void* data,
    unsigned threads,
    unsigned flags);
int omp_get_thread_num() noexcept;
void omp_set_num_threads(int threads) noexcept;
}

namespace tessera {

namespace {

// The thread sanitizer does not instrument libgomp and this file. Without these marks,
// it would see no order between the caller's writes, the tasks and the caller's later
// reads.
#ifdef TESSERA_MARK_TASKS
void release(char& point) {
  __tsan_release(&point);
}
void acquire(char& point) {
  __tsan_acquire(&point);
}
#else
void release(char& /*point*/) {}
void acquire(char& /*point*/) {}
#endif

char fork_point;
char join_point;

// The process in which this thread has run tasks on several threads, or 0. OpenMP
// keeps these threads, and a forked child would wait for them forever.
thread_local pid_t process_with_threads = 0;

bool has_lost_threads() {
  return process_with_threads != 0 && process_with_threads != ::getpid();
}

// The number of threads that run_tasks() uses for this memory traffic.
int64_t threads_for(int64_t bytes) {
  return bytes < kParallelBytes || at::in_parallel_region() ||
          has_lost_threads()
      ? 1
      : at::get_num_threads();
}

// Tasks in ranges of about the same length. Each thread takes the tasks of its own range in
// order, and then those that are left in the others.
class TaskRanges {
 public:
  TaskRanges(int64_t tasks, int64_t threads)
      : tasks_(tasks), ranges_(std::min(threads, kMaxRanges)) {
    for (int64_t i = 0; i < ranges_; ++i) {
      next_[i].store(begin(i), std::memory_order_relaxed);
    }
  }

  // Runs tasks until all of them have been taken.
  void run(int64_t thread, c10::function_ref<void(int64_t)> task) {
    for (int64_t i = 0; i < ranges_; ++i) {
      const int64_t range = (thread + i) % ranges_;
      const int64_t end = begin(range + 1);
      std::atomic<int64_t>& next = next_[range];
      while (next.load(std::memory_order_relaxed) < end) {
        const int64_t taken = next.fetch_add(1, std::memory_order_relaxed);
        if (taken < end) {
          task(taken);
        }
      }
    }
  }

  // Lets no thread take another task.
  void stop() {
    for (int64_t i = 0; i < ranges_; ++i) {
      next_[i].store(tasks_, std::memory_order_relaxed);
    }
  }

 private:
  // More threads than this share ranges. At the end, each thread looks at all ranges.
  static constexpr int64_t kMaxRanges = 64;

  int64_t begin(int64_t range) const {
    return range * tasks_ / ranges_;
  }

  int64_t tasks_;
  int64_t ranges_;
  // All threads write these numbers. The array has cache lines of its own, so that these
  // writes do not slow down reads of other variables. A line has 8 of the numbers, so that
  // a thread without tasks soon finds the tasks of the others.
  alignas(128) std::array<std::atomic<int64_t>, kMaxRanges> next_ = {};
};

}  // namespace

int64_t thread_count() {
  return at::get_num_threads();
}

void set_thread_count(int64_t threads) {
  at::get_num_threads();  // Its first call in a thread sets LibTorch's own number.
  // at::set_num_threads() would act on the whole process.
  omp_set_num_threads(static_cast<int>(threads));
}

int64_t task_size(
    int64_t total,
    int64_t bytes,
    int64_t smallest,
    int64_t largest) {
  constexpr int64_t kTasksPerThread = 4;  // at least
  const int64_t threads = threads_for(bytes);
  if (threads <= 1) {
    return largest;
  }
  const auto share = static_cast<uint64_t>(total / (kTasksPerThread * threads));
  return std::clamp(
      static_cast<int64_t>(std::bit_floor(share)), smallest, largest);
}

void run_tasks(
    int64_t count,
    int64_t bytes,
    c10::function_ref<void(int64_t)> task) {
  const int64_t threads = std::min(count, threads_for(bytes));
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) {
      task(i);
    }
    return;
  }
  TaskRanges ranges(count, threads);
  std::atomic<bool> failed{false};
  std::exception_ptr error;  // of the first task that failed
  auto work = [&] {
    const int thread = omp_get_thread_num();
    if (thread >= threads) {
      return;
    }
    const at::internal::ThreadIdGuard number(thread);
    const c10::ParallelGuard parallel(true);
    acquire(fork_point);
    try {
      ranges.run(thread, task);
    } catch (...) {  // must not pass through GOMP_parallel
      ranges.stop();
      if (!failed.exchange(true)) {
        error = std::current_exception();
      }
    }
    release(join_point);
  };
  process_with_threads = ::getpid();
  release(fork_point);
  // This wakes all threads, even for two tasks. If the number of threads changed from call
  // to call, libgomp would end threads and start them again (PyTorch's issue 32008).
  GOMP_parallel(
      [](void* data) { (*static_cast<decltype(work)*>(data))(); },
      &work,
      /*threads=*/0,
      /*flags=*/0);
  acquire(join_point);
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace tessera
