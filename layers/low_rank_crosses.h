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

/// Whether low_rank_crosses() is to be called: in float32 on the CPU and outside of
/// a trace, with a block of rows for each thread at least, for ranks so small that
/// sums of the weights' gradients for each block take less memory than what is kept
/// of the rows.
bool has_low_rank_crosses(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers);

/// A stack of crosses over one x0:
///
///   x_0 = x0,  x_{i+1} = x0 * (x_i u_i v_i + bias_i) + x_i
///
/// Some rows go through all layers, forward and backward, on one thread and while
/// they are in its cache.
/// Shapes:  x0 and the result [batch, ..., dim].
at::Tensor low_rank_crosses(
    const at::Tensor& x0,
    const std::vector<LowRankCross>& layers);

}  // namespace tessera
