// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/thread_spins.h>

#include "tests/test_util.h"

#include <sys/wait.h>
#include <unistd.h>

namespace tessera {
namespace {

constexpr int kWasNotRestarted = 42;

// Calls limit_thread_spins() in a child process, with the given environment. A restarted
// child runs only ThreadSpinsTest.DISABLED_InRestartedProgram. Returns its exit status.
int status_of_child(const char* policy, const char* spins) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::unsetenv("OMP_WAIT_POLICY");
    ::unsetenv("GOMP_SPINCOUNT");
    if (policy != nullptr) {
      ::setenv("OMP_WAIT_POLICY", policy, 1);
    }
    if (spins != nullptr) {
      ::setenv("GOMP_SPINCOUNT", spins, 1);
    }
    std::string name = "core_test";
    std::string filter =
        "--gtest_filter=ThreadSpinsTest.DISABLED_InRestartedProgram";
    std::string disabled = "--gtest_also_run_disabled_tests";
    char* argv[] = {name.data(), filter.data(), disabled.data(), nullptr};
    limit_thread_spins(argv);
    ::_exit(kWasNotRestarted);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(ThreadSpinsTest, DISABLED_InRestartedProgram) {
  const char* spins = std::getenv("GOMP_SPINCOUNT");
  ASSERT_NE(spins, nullptr);
  EXPECT_STREQ(spins, "3000");
}

TEST(ThreadSpinsTest, RestartsTheProgramWithItsArguments) {
  EXPECT_EQ(status_of_child(nullptr, nullptr), 0);
}

TEST(ThreadSpinsTest, KeepsTheVariablesOfTheUser) {
  EXPECT_EQ(status_of_child("passive", nullptr), kWasNotRestarted);
  EXPECT_EQ(status_of_child(nullptr, "7"), kWasNotRestarted);
}

}  // namespace
}  // namespace tessera
