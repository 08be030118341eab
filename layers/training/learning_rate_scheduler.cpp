// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/learning_rate_scheduler.h>

#include <torch/optim/optimizer.h>

#include <utility>

namespace tessera::training {

LearningRateScheduler::LearningRateScheduler(
    torch::optim::Optimizer& optimizer,
    optim::Schedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)) {
  optim::validate(schedule_, "[LearningRateScheduler]");
}

// Also needed after a resume, because the checkpoint has the rate of the last step.
void LearningRateScheduler::on_epoch_begin(Training& training) {
  set_rate(training);
}

void LearningRateScheduler::on_step_end(Training& training) {
  set_rate(training);
}

void LearningRateScheduler::set_rate(const Training& training) {
  const double rate = optim::value_at(schedule_, training.progress().step);
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(rate);
  }
}

}  // namespace tessera::training
