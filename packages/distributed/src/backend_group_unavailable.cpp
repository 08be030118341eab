// SPDX-License-Identifier: Apache-2.0
// Replaces backend_group.cpp if LibTorch was built without its distributed package.
#include "packages/distributed/src/backend_group.h"

#include "src/common/check.h"

namespace tessera::distributed {

std::shared_ptr<RankGroup> group_of(
    c10::intrusive_ptr<c10d::Backend> /*backend*/,
    at::Device /*device*/) {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      false,
      "[sharded_strategy] this LibTorch has no distributed package. Build Tessera with one that has torch/csrc/distributed/c10d/Backend.hpp, such as PyPI's.");
}

}  // namespace tessera::distributed
