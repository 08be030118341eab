// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/strategy.h>

#include <memory>
#include <vector>

namespace tessera {

class RankGroup;
/// Processes that train together; nullptr: this one alone.
using Ranks = std::shared_ptr<RankGroup>;

/// Those of the strategy's shards.
Ranks ranks_of(const Strategy& strategy);

/// Whether it is so on any rank; without shards, here. All ranks call it.
bool on_any_rank(bool is_so, const Strategy& strategy);
/// Of several, at once.
std::vector<bool> on_any_rank(
    const std::vector<bool>& are_so,
    const Strategy& strategy);

}  // namespace tessera
