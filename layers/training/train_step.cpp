// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/train_step.h>

#include <tessera/common/profile_scope.h>
#include <tessera/distributed/dense_gradients.h>
#include <torch/optim/optimizer.h>

#include "layers/training/optimizer_check.h"
#include "layers/training/ranks.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <cmath>

namespace tessera::training {

bool check_loss(const StepResult& result, const std::string& where) {
  TESSERA_CHECK_VALUE(
      result.loss.defined(),
      "{} expected a loss, but got an undefined tensor. Return the loss of the batch from the step.",
      where);
  TESSERA_CHECK_VALUE(
      result.loss.numel() == 1 && result.loss.is_floating_point(),
      "{} the loss must be one floating-point number, but got {}. Take its mean or sum.",
      where,
      describe(result.loss));
  return std::isfinite(result.loss.item<double>());
}

void validate(const TrainStepOptions& options) {
  TESSERA_CHECK_VALUE(
      !options.strategy.is_sharded() || options.dense_parameters,
      "[make_train_step] with a sharded strategy, the ranks sum the gradients of the dense parameters, but dense_parameters is not set. Set TrainStepOptions::dense_parameters to dense_parameters(*model), or to {{}} if there are none.");
}

void apply_update(
    torch::optim::Optimizer& optimizer,
    StepResult& result,
    const TrainStepOptions& options) {
  validate(options);
  const bool is_finite = check_loss(result, "[make_train_step]");
  TESSERA_CHECK_VALUE(
      !is_finite || result.loss.requires_grad(),
      "[make_train_step] the loss has no gradient. Compute it from parameters that require one, outside of NoGradGuard.");
  result.is_skipped = on_any_rank(!is_finite, options.strategy);
  if (!result.is_skipped) {
    check_optimizer(
        optimizer, result.loss, options.unoptimized, "[make_train_step]");
    {
      const ProfileScope scope("tessera::backward");
      optimizer.zero_grad();
      result.loss.backward();
    }
    if (options.dense_parameters) {
      distributed::sum_gradients(*options.dense_parameters, options.strategy);
    }
    const ProfileScope scope("tessera::optimizer_step");
    optimizer.step();
  }
  result.loss = result.loss.detach();
}

}  // namespace tessera::training
