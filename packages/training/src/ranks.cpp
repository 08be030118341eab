// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/ranks.h"

#include "src/common/rank_group.h"

#include <variant>

namespace tessera::training {

Ranks ranks_of(const Strategy& strategy) {
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  return sharded == nullptr ? nullptr : sharded->ranks;
}

bool on_any_rank(bool flag, const Strategy& strategy) {
  const Ranks ranks = ranks_of(strategy);
  return ranks == nullptr ? flag : ranks->any_of(Rendezvous::kTrain, flag);
}

std::vector<bool> on_any_rank(
    const std::vector<bool>& flags,
    const Strategy& strategy) {
  const Ranks ranks = ranks_of(strategy);
  return ranks == nullptr ? flags : ranks->any_of(Rendezvous::kTrain, flags);
}

}  // namespace tessera::training
