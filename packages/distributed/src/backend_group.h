// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/rank_group.h"

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>

namespace c10d {
class Backend;
}  // namespace c10d

namespace tessera::distributed {

/// Returns the ranks of a backend. All callers with the same backend and the same type of
/// device share one group, because the collectives of a backend have one order. `device`
/// is the device on which the backend expects its tensors.
/// Errors:  c10::ValueError for an empty backend or an unusable device;
///          c10::NotImplementedError if LibTorch has no distributed package.
std::shared_ptr<RankGroup> group_of(
    c10::intrusive_ptr<c10d::Backend> backend,
    at::Device device);

}  // namespace tessera::distributed
