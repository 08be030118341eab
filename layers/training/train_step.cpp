// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/train_step.h>

#include <tessera/distributed/dense_gradients.h>
#include <torch/optim/optimizer.h>

#include "layers/training/ranks.h"
#include "src/common/check.h"

#include <cmath>

namespace tessera::training {

bool check_loss(const StepResult& result) {
  TESSERA_CHECK_VALUE(
      result.loss.defined(),
      "[fit] expected a loss, but got an undefined tensor. Return the loss of the batch from the step.");
  TESSERA_CHECK_VALUE(
      result.loss.numel() == 1 && result.loss.is_floating_point(),
      "[fit] the loss must be one floating-point number, but got {} of shape {}. Take its mean or sum.",
      result.loss.toString(),
      result.loss.sizes());
  return std::isfinite(result.loss.item<double>());
}

void validate(const TrainStepOptions& options) {
  TESSERA_CHECK_VALUE(
      !options.strategy.is_sharded() || options.dense_parameters,
      "[make_train_step] on shards the ranks sum their dense gradients. Set TrainStepOptions::dense_parameters to dense_parameters(*model), or to {{}} where there are none.");
}

void apply_update(
    torch::optim::Optimizer& optimizer,
    StepResult& result,
    const TrainStepOptions& options) {
  validate(options);
  const bool is_finite = check_loss(result);
  TESSERA_CHECK_VALUE(
      !is_finite || result.loss.requires_grad(),
      "[make_train_step] the loss has no gradient. Compute it from parameters that require one, outside of NoGradGuard.");
  result.is_skipped = on_any_rank(!is_finite, options.strategy);
  if (!result.is_skipped) {
    optimizer.zero_grad();
    result.loss.backward();
    if (options.dense_parameters) {
      distributed::sum_gradients(*options.dense_parameters, options.strategy);
    }
    optimizer.step();
  }
  result.loss = result.loss.detach();
}

}  // namespace tessera::training
