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
/// spin for milliseconds, in case the next operator comes soon. On a busy machine they take
/// cores from the thread that they wait for: beside one other busy program on 2 cores, a
/// training step took 14 times as long as without that program. With GOMP_SPINCOUNT=3000
/// they spin for 30 to 150 us, depending on the processor, and then sleep.
///
/// OpenMP reads this variable only when a program starts. So the call sets it and restarts
/// the program with execv(). The process keeps its id, arguments, environment and those
/// open files that have no O_CLOEXEC flag. Constructors of static objects run a second
/// time.
///
/// The call does nothing if OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, if the restart
/// fails, and on systems other than Linux.
/// Errors:  none.
void limit_thread_spins(char** argv);

}  // namespace tessera
