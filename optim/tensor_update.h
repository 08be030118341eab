// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/row_update.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera::optim {

/// A tensor, or some rows of one, with the slots in the order of slots_of().
struct TensorRows {
  at::Tensor weights = {};  // [..., dim]
  std::vector<at::Tensor> slots = {};  // each [..., dim], or [...] per row
};

/// One update of all rows: what a rule reads and what it changes in place.
struct TensorUpdate {
  const UpdateMoment& moment;
  const at::Tensor& gradient;  // [..., dim], clipped
  at::Tensor& weight;  // [..., dim], after weight decay
  std::vector<at::Tensor>& slots;
  /// Begins the messages.
  const std::string& where;

  double learning_rate() const {
    return moment.learning_rate;
  }
};

/// The shape of a slot of a tensor of shape `weights`.
std::vector<int64_t> slot_shape(const SlotSpec& slot, at::IntArrayRef weights);

/// One update of all rows by stock LibTorch operators, in place: the formulas
/// of the specs once more, independent of the kernels.
///
/// Runs custom rules, too, which may throw: then `rows` is half changed.
/// Shapes:  gradients as rows.weights.
/// Errors:  c10::ValueError for what a custom rule returns; `where` begins the
///          message.
void update_rows(
    const OptimizerSpec& optimizer,
    const UpdateMoment& moment,
    at::Tensor gradients,
    TensorRows& rows,
    const std::string& where);

/// Copies of rows `ids` [rows] of all tensors.
TensorRows gather_rows(const TensorRows& rows, const at::Tensor& ids);

/// The reverse of gather_rows().
void scatter_rows(
    const TensorRows& from,
    const at::Tensor& ids,
    const TensorRows& to);

}  // namespace tessera::optim
