// SPDX-License-Identifier: Apache-2.0
#include "src/common/check.h"
#include "tests/test_util.h"

#include "src/common/tensor_text.h"

namespace tessera::test::error_reason_test {

TEST(ErrorReasonTest, IsTheFirstLineOfAMessage) {
  const c10::Error error(
      {"function", "file.cpp", 1}, "No driver was found.\nInstall one.");
  EXPECT_EQ(reason_of(error), "No driver was found.");
  EXPECT_EQ(reason_of(std::runtime_error("one\ntwo")), "one");
  EXPECT_EQ(reason_of(std::runtime_error("one")), "one");
  EXPECT_EQ(reason_of(std::runtime_error("")), "");
}

TEST(ErrorReasonTest, LeavesOutTheStackOfTorchScript) {
  const std::runtime_error error(
      "The following operation failed in the TorchScript interpreter.\n"
      "Traceback of TorchScript (most recent call last):\n"
      "  File \"model\", line 3, in forward\n"
      "RuntimeError: ids must be int64\nbut are float32");
  EXPECT_EQ(reason_of(error), "ids must be int64");
}

TEST(DeviceProblemTest, IsEmptyForADeviceThatLibTorchCanUse) {
  EXPECT_EQ(device_problem(c10::Device(c10::kCPU)), "");
  EXPECT_EQ(device_problem(c10::Device(c10::kMeta)), "");
  const std::string problem = device_problem(c10::Device(c10::kXLA));
  EXPECT_FALSE(problem.empty());
  EXPECT_EQ(problem.find('\n'), std::string::npos);
}

}  // namespace tessera::test::error_reason_test
