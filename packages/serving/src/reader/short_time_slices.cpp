// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/short_time_slices.h>

#ifdef __linux__
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tessera::serving {

void use_short_time_slices() noexcept {
#if defined(__linux__) && defined(SYS_sched_setattr)
  constexpr unsigned kShortest = 100'000;  // nanoseconds
  sched_attr attributes = {};
  const auto size = static_cast<unsigned>(sizeof(attributes));
  // Another policy, such as that of a real-time thread, stays as it is.
  if (::syscall(SYS_sched_getattr, 0, &attributes, size, 0) == 0 &&
      attributes.sched_policy == 0) {
    attributes.sched_runtime = kShortest;
    (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);
  }
#endif
}

}  // namespace tessera::serving
