// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/schedule.h>
#include <tessera/training/callback.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera::training {

// snippet: tests/docs/reference_training_test.cpp LearningRateScheduler
/// Sets the learning rate of an optimizer of torch::optim before each step, in all its
/// parameter groups. The rate is the value of the schedule at the number of steps done
/// since the training began.
///
///   const auto scheduler = std::make_shared<LearningRateScheduler>(
///       optimizer,
///       optim::CosineDecay{.initial_learning_rate = 1e-3, .decay_steps = 10'000});
///   fit(batches, step, {.callbacks = {scheduler}});
///
/// A resumed training continues in the middle of the schedule. Tables and the optimizers
/// of make_optimizer() need no callback, since their `learning_rate` may be a schedule.
/// Errors:  c10::ValueError for a schedule out of range.
/// Differs: keras.callbacks.LearningRateScheduler sets the rate once per epoch.
class LearningRateScheduler : public Callback {
 public:
  /// `optimizer` must outlive the callback.
  LearningRateScheduler(
      torch::optim::Optimizer& optimizer,
      optim::Schedule schedule);

  // Also needed after a resume, because the checkpoint has the rate of the last step.
  void on_epoch_begin(Training& training) override {
    set_learning_rate(training);
  }
  void on_step_end(Training& training) override {
    set_learning_rate(training);
  }

 private:
  void set_learning_rate(const Training& training);

  torch::optim::Optimizer& optimizer_;
  optim::Schedule schedule_;
};

}  // namespace tessera::training
