// SPDX-License-Identifier: Apache-2.0
#include "packages/models/src/unit_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace tessera {

at::Tensor unit_rows(const at::Tensor& rows) {
  constexpr double kSmallest = 1e-12;
  const at::Tensor norms =
      at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, /*keepdim=*/true);
  return at::where(
      norms > kSmallest,
      rows / norms.clamp_min(kSmallest),
      at::zeros_like(rows));
}

}  // namespace tessera
