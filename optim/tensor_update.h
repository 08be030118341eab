// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/row_update.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera::optim {

/// A tensor, or some of its rows, and the slots in the order of slots_of().
struct TensorRows {
  at::Tensor weights = {};  // [..., dim]
  std::vector<at::Tensor> slots = {};  // each [..., dim], or [...] if per row
};

/// The arguments of a rule that updates all rows. It changes weight and slots in place.
struct TensorUpdate {
  const StepContext& context;
  const at::Tensor& gradient;  // [..., dim], clipped
  at::Tensor& weight;  // [..., dim], after weight decay
  std::vector<at::Tensor>& slots;
  /// The beginning of the messages.
  const std::string& where;

  double learning_rate() const {
    return context.learning_rate;
  }
};

/// The shape of a slot for a tensor of shape `weights`.
std::vector<int64_t> slot_shape(const SlotSpec& slot, at::IntArrayRef weights);

/// Updates all rows in place with stock LibTorch operators. It does not use the kernels.
///
/// It also runs custom rules. If such a rule throws, `rows` may be partly changed.
/// Shapes:  gradients has the shape of rows.weights.
/// Errors:  c10::ValueError if a custom rule leaves a wrong tensor; `where` begins the
///          message.
void update_rows(
    const OptimizerSpec& optimizer,
    const StepContext& context,
    at::Tensor gradients,
    TensorRows& rows,
    const std::string& where);

/// Converts slots that were read from a file of an older version, in place. `slots` has
/// some rows of each slot. A slot with a SlotSpec::earlier_name has the values of the
/// earlier slot.
void convert_earlier_slots(
    const OptimizerSpec& optimizer,
    std::vector<at::Tensor> slots);

/// Copies the rows `ids` [rows] of all tensors.
TensorRows gather_rows(const TensorRows& rows, const at::Tensor& ids);

}  // namespace tessera::optim
