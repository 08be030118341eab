// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>

#include <memory>
#include <vector>

namespace tessera {
class RankGroup;
}  // namespace tessera

namespace tessera::training {

/// The processes that train together; nullptr without shards.
using Ranks = std::shared_ptr<RankGroup>;

Ranks ranks_of(const Strategy& strategy);

/// Whether `flag` is set on any rank. Collective; without shards it is `flag`.
bool on_any_rank(bool flag, const Strategy& strategy);
/// The same for several flags.
std::vector<bool> on_any_rank(
    const std::vector<bool>& flags,
    const Strategy& strategy);

}  // namespace tessera::training
