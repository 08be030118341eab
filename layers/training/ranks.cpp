// SPDX-License-Identifier: Apache-2.0
#include "layers/training/ranks.h"

#include <tessera/sharding.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace tessera {

bool on_any_rank(bool is_so, const Strategy& strategy) {
  if (!strategy.is_sharded()) {
    return is_so;
  }
  at::Tensor flag = at::zeros({1}, at::kFloat);
  flag.mutable_grad() = at::full({1}, is_so ? 1.0 : 0.0, at::kFloat);
  sum_gradients({flag}, strategy);
  return flag.grad().item<float>() > 0.0F;
}

}  // namespace tessera
