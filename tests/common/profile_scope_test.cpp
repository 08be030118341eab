// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/profile_scope.h>

#include "tests/test_util.h"

namespace tessera::test::profile_scope_test {

// What a profiler of this thread has seen: "(name" where a scope begins, and ")" where it
// ends.
std::string& seen() {
  thread_local std::string text;
  return text;
}

std::unique_ptr<at::ObserverContext> begin_scope(
    const at::RecordFunction& function) {
  seen() += std::string("(") + function.name();
  return nullptr;
}

void end_scope(const at::RecordFunction& /*function*/, at::ObserverContext*) {
  seen() += ")";
}

// Installs a profiler of this thread.
class ProfileScopeTest : public testing::Test {
 protected:
  ProfileScopeTest()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(begin_scope, end_scope)
                .scopes({at::RecordScope::USER_SCOPE}))) {
    seen().clear();
  }
  ~ProfileScopeTest() override {
    at::removeCallback(handle_);
  }

 private:
  at::CallbackHandle handle_;
};

TEST_F(ProfileScopeTest, ProfilersSeeNestedScopes) {
  {
    const ProfileScope outer("outer");
    { const ProfileScope inner("first"); }
    { const ProfileScope inner("second"); }
  }
  EXPECT_EQ(seen(), "(outer(first)(second))");
}

TEST_F(ProfileScopeTest, EndsWhenAnExceptionLeavesIt) {
  const auto throw_in_scope = [] {
    const ProfileScope scope("failing");
    throw std::runtime_error("mine");
  };
  EXPECT_THROW(throw_in_scope(), std::runtime_error);
  EXPECT_EQ(seen(), "(failing)");
}

TEST_F(ProfileScopeTest, DoesNothingOnAThreadWithoutAProfiler) {
  std::string text = "unset";
  std::thread([&] {
    { const ProfileScope scope("other"); }
    text = seen();
  }).join();
  EXPECT_EQ(text, "");
  EXPECT_EQ(seen(), "");
}

}  // namespace tessera::test::profile_scope_test
