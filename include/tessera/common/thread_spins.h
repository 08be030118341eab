// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Lets idle threads sleep soon, so that other programs on the machine do not slow this one
/// down. Call it first in main().
///
///   int main(int argc, char** argv) {
///     tessera::limit_thread_spins(argv);
///
/// LibTorch computes with the threads of GNU's OpenMP. After each operator, idle threads
/// spin for milliseconds, because the next operator may come soon. If other programs need
/// the cores, these threads take the time of the thread that they wait for, and a
/// training step can take 14 times as long. With GOMP_SPINCOUNT=1000 they spin for some
/// 10 us and then sleep.
///
/// OpenMP reads this variable only when a program starts. So the call sets it and
/// restarts the program with execv(). The process keeps its id, its arguments, its
/// environment and its open files.
///
/// The call does nothing if OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, if the restart
/// fails, and on systems other than Linux.
/// Errors:  none.
void limit_thread_spins(char** argv);

}  // namespace tessera
