// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/thread_spins.h>

#ifdef __linux__
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#endif

namespace tessera {

#ifdef __linux__
void limit_thread_spins(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr ||
      std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return;  // set by the user, or by the call before the restart
  }
  // With /proc/self/exe itself, ps and top would show the name "exe".
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  // Without a base address, the dynamic linker was started as a program.
  if (error || ::getauxval(AT_BASE) == 0) {
    return;
  }
  // The program restarts, because libgomp reads GOMP_SPINCOUNT in a constructor, before
  // main(). Setting the variable in .preinit_array has no effect, either. With 3000,
  // 2 threads of an idle machine are about as fast as with the default of 300,000, and
  // 4 threads 0.86 to 0.89 times as fast. With 1000, threads fall asleep within a step.
  if (::setenv("GOMP_SPINCOUNT", "3000", /*replace=*/0) == 0) {
    ::execv(program.c_str(), argv);
    ::unsetenv("GOMP_SPINCOUNT");  // the restart has failed
  }
}
#else
void limit_thread_spins(char** /*argv*/) {}
#endif

}  // namespace tessera
