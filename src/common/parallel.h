// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cstdint>

namespace tessera {

/// With less memory traffic than this, in bytes, waking other threads costs more than
/// it saves.
inline constexpr int64_t kParallelBytes = int64_t{128} * 1024;

/// Returns the number of LibTorch's intra-op threads for the calling thread.
int64_t thread_count();

/// Sets the number of intra-op threads for the calling thread only.
void set_thread_count(int64_t threads);

/// Returns how much of `total` each task should get, so that every thread gets a few tasks
/// and waits little for the others. `bytes` is the memory traffic of all tasks, as in
/// run_tasks().
///
/// The size is a power of two or one of the two bounds. It is `largest` if one thread runs
/// all tasks. The size depends on the number of threads, so results must not depend on the
/// size.
int64_t task_size(
    int64_t total,
    int64_t bytes,
    int64_t smallest,
    int64_t largest);

/// Runs task(0), ..., task(count - 1), each once, on LibTorch's intra-op threads.
///
/// Each thread begins with its own share of the tasks, in order: the first thread with the
/// first tasks, and so on. If the tasks of two calls divide the same rows, the tasks of a row
/// therefore mostly run on the same thread, which still has the row in its cache. A thread
/// that has finished takes tasks of the others, so tasks may differ in length. It must not
/// matter which thread runs which task. `bytes` is the memory traffic of all tasks.
/// All tasks run on the calling thread if `bytes` is below kParallelBytes, and in a forked
/// child whose forking thread has run tasks on several threads.
/// Errors:  rethrows the first exception of a task; tasks that have not begun do not run.
void run_tasks(
    int64_t count,
    int64_t bytes,
    c10::function_ref<void(int64_t)> task);

/// Calls run(begin, end) for ranges of `size` numbers that cover [0, count), each as a task
/// of run_tasks(). The last range may be shorter.
template <class Run>
void run_ranges(int64_t count, int64_t size, int64_t bytes, const Run& run) {
  run_tasks((count + size - 1) / size, bytes, [&](int64_t task) {
    const int64_t begin = task * size;
    run(begin, std::min(count, begin + size));
  });
}

}  // namespace tessera
