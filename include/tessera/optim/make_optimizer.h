// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizer.h>
#include <torch/optim/optimizer.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp SpecGroup
/// A spec and the parameters that it trains.
///
///   const auto optimizer = make_optimizer(
///       {SpecGroup{.spec = Adam{}, .parameters = tower->parameters()},
///        SpecGroup{.spec = SGD{.learning_rate = 0.1}, .parameters = {bias}}});
struct SpecGroup {
  OptimizerSpec spec = {};
  std::vector<at::Tensor> parameters = {};
};

/// Makes a torch::optim::Optimizer from any spec, for dense weights and for tables of
/// Strategy::host(). Kernels update contiguous float32 parameters on the CPU that have
/// dense gradients, all of them in one pass. Stock LibTorch operators update other
/// parameters. make_optimizer(layer) always uses stock operators.
///
///   auto optimizer = optim::make_optimizer(
///       optim::translate_keras_optimizer(json, optim::Fidelity::kExact),
///       model->parameters());
///   torch::optim::StepLR scheduler(*optimizer, 10, 0.5);
///
/// A dense gradient updates all rows. A sparse gradient, such as an embedding's, updates
/// only the rows that it holds, each of them once. If the spec has lazy = false, a sparse
/// gradient updates all rows, too. Specs that work on a whole row (RowWiseAdagrad, LAMB)
/// work along the last dimension. All groups share one step counter, and schedules use
/// it. Parameters without a gradient are not updated; in a gradient accumulation, a
/// missing gradient counts as zeros. get_lr() of a group is its learning rate at the next
/// step; set_lr() also replaces a schedule or callable. LibTorch's add_param_group()
/// gives new parameters the first group's spec.
///
/// torch::save saves slots, steps, and the gradients of an unfinished accumulation. After
/// a load, the learning rate is still that of the spec, as for tables: a new schedule
/// continues at the saved step. Only a rate of set_lr() is saved and restored. Loading an
/// archive without such a rate undoes an earlier set_lr().
/// Errors:  c10::ValueError for an invalid spec; a spec that updates a row once per
///          duplicate (use_gradient_accumulation = false) or has slot_creation; an
///          empty list of parameters; and a parameter that is given twice or is not a
///          leaf of a floating-point type. Before anything changes, step() checks the
///          learning rates, the results of custom rules, the shapes of gradients and
///          slots, and that sparse gradients hold whole rows. The error of load() lists
///          all differences.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSpec& spec,
    std::vector<at::Tensor> parameters);

/// Makes an optimizer with one param group per entry.
/// Errors:  as above, and c10::ValueError if there is no group.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    std::vector<SpecGroup> groups);

}  // namespace tessera::optim
