// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/named_function.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::optim {

/// What a custom rule gets: copies of the touched rows, which it changes.
///
/// Off the engine a dense gradient touches all rows, and tensors have the
/// parameter's shape, [..., dim].
struct CustomRows {
  /// Row by row, in no particular order, after weight decay. To be changed in
  /// place, or replaced by a tensor of the same shape.
  at::Tensor weights = {};  // [rows, dim]
  /// As the spec lists them; to be changed like the weights.
  std::vector<at::Tensor> slots = {};  // each [rows, dim] or [rows]
  /// Summed over duplicates, or the mean of such sums where several passes make
  /// an update; clipped.
  at::Tensor gradients = {};  // [rows, dim]
  /// As read for this update.
  double learning_rate = 0.0;
  /// 1, 2, ...: which update of the table this is.
  int64_t update = 1;
};

/// The user's own rule.
///
/// When it throws, or leaves a tensor of another shape or dtype, the update is
/// an error and no row of any table changes.
using CustomRule = NamedFunction<void(CustomRows&)>;

}  // namespace tessera::optim
