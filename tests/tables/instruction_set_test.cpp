// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/instruction_set.h>

#include "src/kernels/kernels.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(InstructionSetTest, IsOneThatThisMachineHas) {
  EXPECT_NE(kernels::find_kernels(instruction_set()), nullptr);
}

}  // namespace
}  // namespace tessera
