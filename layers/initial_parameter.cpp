// SPDX-License-Identifier: Apache-2.0
#include "layers/initial_parameter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdint>

namespace tessera {

at::Tensor initial_parameter(
    const Initializer& initializer,
    std::string_view name,
    at::IntArrayRef shape) {
  const at::NoGradGuard no_grad;
  const auto seed = at::empty({1}, at::kLong).random_().item<int64_t>();
  at::Tensor parameter = at::empty(shape, at::kFloat);
  initialize_rows(
      initializer,
      static_cast<uint64_t>(seed),
      name,
      /*first_row=*/0,
      shape.size() == 1 ? parameter.unsqueeze(0) : parameter);
  return parameter;
}

}  // namespace tessera
