// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizer.h>
#include <torch/optim/optimizer.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tessera::optim {

/// Parameters that one spec trains.
struct SpecGroup {
  OptimizerSpec spec = {};
  std::vector<at::Tensor> parameters = {};
};

/// Any spec as a torch::optim::Optimizer, in stock LibTorch operators, for
/// dense weights and for tables of Strategy::host().
///
///   auto optimizer = optim::make_optimizer(
///       optim::translate_keras_optimizer(json, optim::Fidelity::kExact),
///       model->parameters());
///   torch::optim::StepLR scheduler(*optimizer, 10, 0.5);
///
/// A dense gradient touches all rows. A sparse one, as of an embedding, touches
/// those that it holds, each once, unless the spec sweeps (lazy = false). What
/// the specs do per row (RowWiseAdagrad, LAMB) is done along the last
/// dimension. One counter of steps for all groups; schedules are read at it.
/// Parameters without gradient are not updated; in a gradient accumulation, a missing
/// gradient counts as zeros. A group's get_lr() is its rate at the next step; set_lr()
/// replaces a schedule or callable, too. LibTorch's add_param_group() gives new
/// parameters the first group's spec. torch::save keeps slots, steps, learning rates
/// and the gradients of an unfinished accumulation.
/// Errors:  c10::ValueError for an invalid spec, one that takes duplicates one
///          by one (use_gradient_accumulation = false) or has slot_creation,
///          and for parameters that are none, given twice, or not leaves of a
///          floating-point type. From step(), before anything changes: for
///          learning rates, sparse gradients that are not of rows, and what a
///          custom rule leaves. From load(): listing every difference.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSpec& spec,
    std::vector<at::Tensor> parameters);

/// One param group per entry.
/// Errors:  besides, c10::ValueError when there is no group.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    std::vector<SpecGroup> groups);

}  // namespace tessera::optim
