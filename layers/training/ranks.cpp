// SPDX-License-Identifier: Apache-2.0
#include "layers/training/ranks.h"

#include <tessera/sharding.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <variant>

namespace tessera {

Ranks ranks_of(const Strategy& strategy) {
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  return sharded == nullptr ? nullptr : sharded->ranks;
}

bool on_any_rank(bool is_so, const Strategy& strategy) {
  return on_any_rank(std::vector<bool>{is_so}, strategy)[0];
}

std::vector<bool> on_any_rank(
    const std::vector<bool>& are_so,
    const Strategy& strategy) {
  if (!strategy.is_sharded()) {
    return are_so;
  }
  const auto count = static_cast<int64_t>(are_so.size());
  at::Tensor flags = at::zeros({count}, at::kFloat);
  at::Tensor sums = at::zeros({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    sums.mutable_data_ptr<float>()[i] = are_so[i] ? 1.0F : 0.0F;
  }
  flags.mutable_grad() = sums;
  sum_gradients({flags}, strategy);
  std::vector<bool> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(flags.grad().const_data_ptr<float>()[i] > 0.0F);
  }
  return result;
}

}  // namespace tessera
