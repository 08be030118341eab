// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// One layer of mlp_blocks().
struct DenseLayer {
  at::Tensor weight = {};  // [out, in]
  at::Tensor bias = {};  // [out], in all layers or in none
  bool has_relu = false;  // the same in all layers but the last
};

/// Returns whether mlp_blocks() may be called. It needs float32 on the CPU, no trace, and
/// blocks of rows that are faster than LibTorch's operators. Under autocast, the operators
/// compute in 16 bits.
bool has_mlp_blocks(
    const std::vector<at::Tensor>& inputs,
    const std::vector<DenseLayer>& layers);

/// A stack of layers: relu(x weight^T + bias), or without relu. The x of the first layer
/// consists of the inputs, joined along the last axis.
///
/// One thread computes all layers for a block of rows, forward and backward, while the
/// block is in its cache. With large weights, all threads share each product. The result and
/// the gradients do not depend on the number of threads.
/// Shapes:  inputs [batch, ..., n] with the same batch dimensions; the result
///          [batch, ..., out].
at::Tensor mlp_blocks(
    const std::vector<at::Tensor>& inputs,
    const std::vector<DenseLayer>& layers);

}  // namespace tessera
