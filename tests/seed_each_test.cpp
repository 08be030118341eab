// SPDX-License-Identifier: Apache-2.0
// Seeds LibTorch's generator before each test, because its random numbers would
// depend on the process and on the tests before. Every test binary links this file.
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
