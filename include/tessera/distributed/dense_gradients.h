// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::distributed {

// The dense part of a model has the same weights on all ranks: each rank computes
// gradients of its own batch, and all ranks apply the sum of them.
//
//   broadcast_parameters(dense_parameters(*model), strategy);  // once
//   for (...) {
//     (loss_sum / global_batch_size).backward();
//     sum_gradients(dense_parameters(*model), strategy);
//     optimizer.step();  // and before it, if at all, clip_grad_norm_()
//   }
//
// On the other strategies both do nothing. All ranks call them at the same point,
// with the same parameters: dense float32 tensors on the cpu.

/// Adds up the gradients of each parameter over the ranks, in their order; a
/// parameter without gradient counts as zeros where others have one.
/// Errors:  c10::ValueError for other tensors; c10::Error naming the rank that
///          failed or did not come.
void sum_gradients(
    const std::vector<at::Tensor>& parameters,
    const Strategy& strategy);

/// Replaces the values of each parameter by those of rank 0.
/// Errors:  as above.
void broadcast_parameters(
    const std::vector<at::Tensor>& parameters,
    const Strategy& strategy);

}  // namespace tessera::distributed
