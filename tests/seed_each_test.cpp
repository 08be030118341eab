// SPDX-License-Identifier: Apache-2.0
// Linked into every test binary: LibTorch's generator starts at another place in
// each process, and a test must not depend on its luck, or on the tests before.
#include <ATen/Context.h>

#include <gtest/gtest.h>

namespace {

class SeedEachTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    at::manual_seed(0);
  }
};

// The framework owns its listeners.
const bool is_appended = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);
  return true;
}();

}  // namespace
