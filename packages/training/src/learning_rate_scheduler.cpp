// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/learning_rate_scheduler.h>

#include "src/common/check.h"

#include <torch/optim/optimizer.h>

#include <cmath>
#include <utility>

namespace tessera::training {

LearningRateScheduler::LearningRateScheduler(
    torch::optim::Optimizer& optimizer,
    optim::Schedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)) {
  optim::validate(schedule_, "[LearningRateScheduler]");
}

void LearningRateScheduler::set_learning_rate(const Training& training) {
  const int64_t step = training.progress().step;
  const double learning_rate = optim::value_at(schedule_, step);
  TESSERA_CHECK_VALUE(
      std::isfinite(static_cast<float>(learning_rate)) && learning_rate >= 0.0,
      "[LearningRateScheduler] the rate of step {} must be finite and >= 0, but the schedule gives {}. Correct the options of the schedule.",
      step,
      learning_rate);
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(learning_rate);
  }
}

}  // namespace tessera::training
