// SPDX-License-Identifier: Apache-2.0
// The learning rate of a resumed optimizer of make_optimizer().
#include <tessera/optim/make_optimizer.h>

#include "packages/training/tests/training_fixture.h"

namespace tessera::training::optimizer_archive_test {

// Trains to the end of `epochs` with a checkpoint. Returns the next learning rate.
double train_to(
    int64_t epochs,
    const optim::LearningRate& rate,
    std::optional<double> set_rate,
    const TemporaryFolder& folder) {
  ClickRun run;
  const auto optimizer = optim::make_optimizer(
      optim::Adam{.learning_rate = rate}, run.model->tower->parameters());
  if (set_rate) {
    optimizer->param_groups()[0].options().set_lr(*set_rate);
  }
  fit(click_batches(2, 1),
      make_train_step(*optimizer, run.loss_of()),
      {.epochs = epochs,
       .checkpoint = std::make_shared<Checkpoint>(
           folder / "checkpoints", run.model.ptr(), *optimizer)});
  return optimizer->param_groups()[0].options().get_lr();
}

TEST(OptimizerArchiveTest, AResumedTrainingHasTheRateOfTheProgram) {
  const TemporaryFolder folder;
  EXPECT_EQ(train_to(1, 0.5, {}, folder), 0.5);
  EXPECT_EQ(train_to(2, 0.25, {}, folder), 0.25);
  const optim::PiecewiseConstantDecay schedule{
      .boundaries = {5.0}, .values = {0.125, 0.0625}};
  EXPECT_EQ(train_to(3, schedule, {}, folder), 0.0625);  // after step 6
  EXPECT_EQ(train_to(4, 0.5, {}, folder), 0.5);
}

TEST(OptimizerArchiveTest, AResumedTrainingKeepsARateOfSetLr) {
  const TemporaryFolder folder;
  EXPECT_EQ(train_to(1, 0.5, 0.125, folder), 0.125);
  EXPECT_EQ(train_to(2, 0.25, {}, folder), 0.125);
}

}  // namespace tessera::training::optimizer_archive_test
