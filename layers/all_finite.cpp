// SPDX-License-Identifier: Apache-2.0
#include "layers/all_finite.h"

#include "src/common/active_kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <cmath>
#include <cstdint>

namespace tessera {

bool all_finite(const at::Tensor& tensor) {
  // The operators below take several microseconds, even for a bias. So a kernel checks small
  // tensors. For a large tensor, the operators use all threads.
  constexpr int64_t kSmall = 64 * 1024;
  if (tensor.is_cpu() && tensor.layout() == at::kStrided &&
      tensor.scalar_type() == at::kFloat && !tensor.is_neg() &&
      !tensor._is_zerotensor() && tensor.is_contiguous() &&
      tensor.numel() <= kSmall) {
    return std::isfinite(active_kernels().largest_magnitude(
        {.first = tensor.const_data_ptr<float>()}, 1, tensor.numel()));
  }
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
