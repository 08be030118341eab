// SPDX-License-Identifier: Apache-2.0
#include "optim/tensor_update.h"

#include <tessera/optim/optimizers.h>

#include "optim/common_options.h"
#include "optim/optimizer_definition.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>

#include <variant>

namespace tessera::optim {

using at::Tensor;

std::vector<int64_t> slot_shape(const SlotSpec& slot, at::IntArrayRef weights) {
  return slot.is_per_row ? weights.slice(0, weights.size() - 1).vec()
                         : weights.vec();
}

void update_rows(
    const OptimizerSpec& optimizer,
    const StepContext& context,
    at::Tensor gradients,
    TensorRows& rows,
    const std::string& where) {
  const at::NoGradGuard no_grad;
  const CommonOptions options = common_options(optimizer);
  if (options.clips_gradient()) {
    gradients =
        gradients.clamp(options.clip_gradient_min, options.clip_gradient_max);
  }
  if (options.weight_decay_factor) {
    rows.weights.sub_(
        rows.weights * options.weight_decay(context.learning_rate));
  }
  const TensorUpdate update{
      .context = context,
      .gradient = gradients,
      .weight = rows.weights,
      .slots = rows.slots,
      .where = where};
  std::visit(
      [&](const auto& spec) { definition_of(spec)->update_rows(update); },
      optimizer.variant());
  if (options.clips_weight()) {
    rows.weights.clamp_(options.clip_weight_min, options.clip_weight_max);
  }
}

void convert_earlier_slots(
    const OptimizerSpec& optimizer,
    std::vector<Tensor> slots) {
  const at::NoGradGuard no_grad;
  std::visit(
      [&](const auto& spec) {
        definition_of(spec)->convert_earlier_slots(slots);
      },
      optimizer.variant());
}

TensorRows gather_rows(const TensorRows& rows, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  const auto gather = [&](const Tensor& from) {
    return from.index_select(0, ids);
  };
  return {gather(rows.weights), c10::fmap(rows.slots, gather)};
}

}  // namespace tessera::optim
