// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/ranks.h"

#include <tessera/engine/table_module.h>
#include <torch/nn/module.h>

#include "src/common/check.h"
#include "src/common/checksum.h"
#include "src/common/rank_group.h"

#include <variant>

namespace tessera::training {

Ranks ranks_of(const Strategy& strategy) {
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  return sharded == nullptr ? nullptr : sharded->ranks;
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

uint64_t checksum_of(const std::vector<at::Tensor>& parameters) {
  Checksum checksum;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.defined() && parameter.numel() > 0 && parameter.is_cpu() &&
        parameter.layout() == at::kStrided) {
      const at::Tensor values = parameter.detach().contiguous();
      checksum.add(values.const_data_ptr(), values.nbytes());
    }
  }
  return std::stoull(checksum.digits(), nullptr, 16) | 1U;
}

void check_same_weights(
    const std::vector<uint64_t>& checksums,
    const std::string& where,
    const std::string& advice) {
  for (size_t i = 1; i < checksums.size(); ++i) {
    TESSERA_CHECK_VALUE(
        checksums[0] == 0 || checksums[i] == 0 || checksums[i] == checksums[0],
        "{} the dense weights must be equal on all ranks, but those of rank {} differ from those of rank 0. Call broadcast_parameters() before the training, or make the model with the same seed on all ranks.{}",
        where,
        i,
        advice);
  }
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
