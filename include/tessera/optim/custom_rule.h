// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/named_function.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp CustomRows
/// The argument of a custom rule: copies of the touched rows, which the rule changes.
///
/// With Strategy::fused(), the shapes are the ones below. With make_optimizer(), a
/// dense gradient touches all rows, and the tensors have the shape of the parameter,
/// [..., dim].
///
///   const CustomRule rule("decay", [](CustomRows& rows) {
///     const auto step = rows.gradients + 0.01 * rows.weights;
///     rows.weights.sub_(step, rows.learning_rate);
///   });
struct CustomRows {
  /// The weights after weight decay. The rows are in no particular order. The rule
  /// changes this tensor in place, or assigns a tensor of the same shape.
  at::Tensor weights = {};  // [rows, dim]
  /// The slots in the order of the spec. The rule changes them like the weights.
  std::vector<at::Tensor> slots = {};  // each [rows, dim] or [rows]
  /// The gradient of each row, clipped. It is the sum over the row's duplicates. With
  /// gradient_accumulation_steps > 1, it is the mean of these sums over the passes.
  at::Tensor gradients = {};  // [rows, dim]
  /// The learning rate of this update.
  double learning_rate = 0.0;
  /// The number of this update of the table: 1, 2, ...
  int64_t update = 1;
};

/// A user-defined update rule.
///
/// If it throws, or leaves a tensor of another shape or dtype, the update fails and no
/// row of any table changes.
using CustomRule = detail::NamedFunction<void(CustomRows&)>;

}  // namespace tessera::optim
