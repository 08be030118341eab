// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// One layer of low_rank_crosses().
struct LowRankCross {
  at::Tensor u;  // [dim, rank]
  at::Tensor v;  // [rank, dim]
  at::Tensor bias;  // [dim], in all layers or in none
};

/// A stack of crosses over one x0, in float32 on the CPU:
///
///   x_0 = x0,  x_{i+1} = x0 * (x_i u_i v_i + bias_i) + x_i
///
/// Some rows go through all layers, forward and backward, on one thread and while
/// they are in its cache.
/// Shapes:  x0 and the result [rows, dim]; rows and layers >= 1.
at::Tensor low_rank_crosses(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers);

}  // namespace tessera
