// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/ranks.h"

#include <tessera/engine/table_module.h>
#include <torch/nn/module.h>

#include "src/common/checksum.h"
#include "src/common/rank_group.h"

#include <variant>

namespace tessera::training {

Ranks ranks_of(const Strategy& strategy) {
  static const Ranks alone = make_solo_group();
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  return sharded == nullptr ? alone : sharded->ranks;
}

Ranks ranks_of(const torch::nn::Module& model, const Strategy& strategy) {
  return ranks_of(sharded_strategy_of(model).value_or(strategy));
}

std::optional<Strategy> sharded_strategy_of(const torch::nn::Module& model) {
  std::optional<Strategy> strategy;
  model.apply([&](const torch::nn::Module& part) {
    const auto* tables = TableModule::of(part);
    if (!strategy && tables != nullptr && tables->strategy().is_sharded()) {
      strategy = tables->strategy();
    }
  });
  return strategy;
}

double checksum_of(const std::vector<at::Tensor>& parameters) {
  Checksum checksum;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.defined() && parameter.numel() > 0 && parameter.is_cpu() &&
        parameter.layout() == at::kStrided) {
      const at::Tensor values = parameter.detach().contiguous();
      checksum.add(values.const_data_ptr(), values.nbytes());
    }
  }
  // A double holds 53 bits.
  const uint64_t bits = std::stoull(checksum.digits(), nullptr, 16) >> 11U;
  return static_cast<double>(bits | 1U);
}

std::vector<bool> on_any_rank(
    const std::vector<bool>& flags,
    const Strategy& strategy) {
  return strategy.is_sharded()
      ? ranks_of(strategy)->any_of(Rendezvous::kTrain, flags)
      : flags;
}

bool on_any_rank(bool flag, const Strategy& strategy) {
  return on_any_rank(std::vector<bool>{flag}, strategy)[0];
}

}  // namespace tessera::training
