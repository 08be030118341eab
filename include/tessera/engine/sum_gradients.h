// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::distributed {

// The dense part of a model has the same weights on all ranks. Each rank computes the
// gradients of its own batch, and all ranks apply their sum.
//
//   broadcast_parameters(dense_parameters(*model), strategy);  // once
//   for (...) {
//     (loss_sum / global_batch_size).backward();
//     sum_gradients(dense_parameters(*model), strategy);
//     optimizer.step();  // call clip_grad_norm_() before it, if you need it
//   }
//
// If the strategy is not sharded, both functions do nothing. All ranks must call them at
// the same point, with the same parameters, which are dense float32 tensors on the CPU.

/// Sums the gradients of each parameter over the ranks, in the order of the ranks. A
/// missing gradient counts as zeros if another rank has a gradient.
/// Errors:  c10::ValueError for tensors that are not dense float32 tensors on the CPU;
///          c10::Error naming the rank that failed or did not arrive.
void sum_gradients(
    const std::vector<at::Tensor>& parameters,
    const Strategy& strategy);

/// Replaces the values of each parameter by those of rank 0.
/// Errors:  the same as sum_gradients(), and c10::ValueError for a parameter of a layer
///          that is not built.
void broadcast_parameters(
    const std::vector<at::Tensor>& parameters,
    const Strategy& strategy);

}  // namespace tessera::distributed
