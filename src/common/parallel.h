// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace tessera {

/// Bytes of memory traffic below which waking other threads costs more than it
/// saves.
inline constexpr int64_t kParallelBytes = int64_t{128} * 1024;

/// LibTorch's intra-op threads for the calling thread.
int64_t thread_count();

/// The same for the calling thread alone; others keep theirs.
void set_thread_count(int64_t threads);

/// Runs task(0) .. task(count - 1), each once, on LibTorch's intra-op threads.
///
/// Threads take the next task when they are done with one, so tasks may differ
/// in length; which thread runs which task must not matter. With a total of
/// `bytes` below kParallelBytes everything runs on the calling thread. The same holds
/// in a forked child if the forking thread has run tasks on several threads.
/// Errors:  rethrows the first exception of a task; later tasks may not run.
void run_tasks(
    int64_t count,
    int64_t bytes,
    c10::function_ref<void(int64_t)> task);

}  // namespace tessera
