// SPDX-License-Identifier: Apache-2.0
#include "layers/all_finite.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <cmath>

namespace tessera {

bool all_finite(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.layout() == at::kSparse
      ? tensor.detach()._values()
      : tensor.detach();
  // A sum is cheaper than isfinite(). If it is finite, all values are. If not, it may have
  // overflowed.
  return (values.is_floating_point() &&
          std::isfinite(values.sum().item<double>())) ||
      at::isfinite(values).all().item<bool>();
}

}  // namespace tessera
