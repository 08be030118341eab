// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

// snippet: tests/docs/reference_sasrec_test.cpp linear_cross_entropy
/// The mean cross entropy of a softmax over all classes, where a score is the dot product
/// of a state and the row of a class:
///
///   loss = mean over i of  log(sum over c of exp(states[i] rows[c])) - states[i] rows[t]
///
/// with t = targets[i].
///
///   const auto loss =
///       linear_cross_entropy(states, rows, torch::tensor({7, 0, 9}));
///   loss.backward();
///
/// In float32 on the CPU, the scores [n, classes] are never in
/// memory. A thread computes those of a few states, and at once their gradients, while
/// they are in its cache. Use it for up to some ten thousand classes. With more, the
/// products take too long: sample some of them, as Retrieval does.
///
/// Shapes:  states [n, dim] and rows [classes, dim], float32 or float64; targets [n] int64
///          or int32, in [0, classes). The result is a scalar.
/// Errors:  c10::ValueError or TypeError for shapes, dtypes, n = 0 and a loss that is not
///          finite; c10::IndexError for a target out of range.
/// Source:  torch.nn.functional.linear_cross_entropy.
at::Tensor linear_cross_entropy(
    const at::Tensor& states,
    const at::Tensor& rows,
    const at::Tensor& targets);

}  // namespace tessera
