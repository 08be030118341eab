// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

namespace tessera {
class RankGroup;
}  // namespace tessera

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::training {

/// The processes that train together. If nothing is sharded, this process is alone, and all
/// such strategies have the same object.
using Ranks = std::shared_ptr<RankGroup>;

Ranks ranks_of(const Strategy& strategy);

/// The strategy of the sharded tables of a model; unset if it has none.
std::optional<Strategy> sharded_strategy_of(const torch::nn::Module& model);

/// The ranks of the model's tables, or those of `strategy` if no table is sharded.
Ranks ranks_of(
    const torch::nn::Module& model,
    const Strategy& strategy = Strategy::fused());

/// A checksum of the values of the parameters; never 0.
double checksum_of(const std::vector<at::Tensor>& parameters);

/// Whether `flag` is set on any rank. Collective. Returns `flag` if nothing is sharded.
bool on_any_rank(bool flag, const Strategy& strategy);
/// Returns for each flag whether it is set on any rank. Collective.
std::vector<bool> on_any_rank(
    const std::vector<bool>& flags,
    const Strategy& strategy);

}  // namespace tessera::training
