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
/// In float32 on the CPU, the scores [n, classes] are never in memory. A thread computes
/// the scores of a few states, and then the gradients while these scores are in its cache.
/// Use it for up to some ten thousand classes. With more, the products take too long: use
/// sampled_linear_cross_entropy() or Retrieval.
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

// snippet: tests/docs/reference_sasrec_test.cpp sampled_linear_cross_entropy
/// The mean cross entropy of a softmax over the positive item of each state and the sampled
/// negatives, which all states share:
///
///   loss = mean over i of  log(exp(p) + sum over j of exp(states[i] negatives[j])) - p
///
/// with p = states[i] positives[i]. A negative with the id of the positive item is left out
/// of the sum (an accidental hit).
///
///   const auto sampled = torch::randint(10, {4}, torch::kLong);
///   const auto loss = sampled_linear_cross_entropy(
///       states,
///       rows.index_select(0, items),
///       rows.index_select(0, sampled),
///       items,
///       sampled);
///   loss.backward();
///
/// It is sampled_softmax_loss() of dot products, without the scores in memory: see
/// linear_cross_entropy(). For a temperature, divide the states by it.
///
/// Shapes:  states and positives [n, dim], negatives [m, dim], float32 or float64;
///          positive_ids [n] and negative_ids [m] int64 or int32. The result is a scalar.
/// Errors:  c10::ValueError or TypeError for shapes, dtypes, n = 0, m = 0 and a loss that is
///          not finite.
/// Source:  tf.nn.sampled_softmax_loss with uniform samples.
at::Tensor sampled_linear_cross_entropy(
    const at::Tensor& states,
    const at::Tensor& positives,
    const at::Tensor& negatives,
    const at::Tensor& positive_ids,
    const at::Tensor& negative_ids);

}  // namespace tessera
