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

/// Returns whether low_rank_crosses() may be called. It needs float32 on the CPU, no trace, no
/// autocast, and blocks of rows that are faster than LibTorch's operators.
bool has_low_rank_crosses(
    const std::vector<at::Tensor>& inputs,
    const std::vector<LowRankCross>& layers);

/// A stack of crosses over one x0, which is the inputs joined along the last axis:
///
///   x_0 = x0,  x_{i+1} = x0 * (x_i u_i v_i + bias_i) + x_i
///
/// It computes them as x_i = x0 * factor_i + x0, which needs fewer products for the gradients:
///
///   factor_0 = 0,  factor_{i+1} = factor_i + x_i u_i v_i + bias_i
///
/// One thread computes all layers for some rows at a time, forward and backward, so that it
/// reads most of them from its caches. With a large rank, all threads share each product.
/// Shapes:  inputs [batch, ..., n_i]; the result [batch, ..., dim], and dim is the sum of n_i.
at::Tensor low_rank_crosses(
    const std::vector<at::Tensor>& inputs,
    const std::vector<LowRankCross>& layers);

}  // namespace tessera
