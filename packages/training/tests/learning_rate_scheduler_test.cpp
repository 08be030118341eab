// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/learning_rate_scheduler.h>

#include "packages/training/tests/training_fixture.h"

namespace tessera::training::learning_rate_scheduler_test {

TEST(LearningRateSchedulerTest, SetsTheRateOfEveryStep) {
  ClickRun run;
  auto train = run.train_step();
  std::vector<double> rates;
  const auto step = [&](const ClickBatch& batch) {
    rates.push_back(run.optimizer.param_groups()[0].options().get_lr());
    return train(batch);
  };
  fit(click_batches(2, 1),
      step,
      {.epochs = 2,
       .callbacks = {LearningRateScheduler(
           run.optimizer,
           optim::PolynomialDecay{
               .initial_learning_rate = 0.5,
               .decay_steps = 4,
               .end_learning_rate = 0.0})}});
  EXPECT_EQ(rates, (std::vector<double>{0.5, 0.375, 0.25, 0.125}));
}

TEST(LearningRateSchedulerTest, ResumesInTheMiddleOfTheSchedule) {
  const TemporaryFolder folder;
  const auto train_to = [&](int64_t epochs) {
    ClickRun run;
    run.train(
        click_batches(2, 1),
        {.epochs = epochs,
         .callbacks = {LearningRateScheduler(
             run.optimizer,
             optim::ExponentialDecay{
                 .initial_learning_rate = 1.0,
                 .decay_steps = 1,
                 .decay_rate = 0.5})},
         .checkpoint = run.checkpoint(folder / "checkpoints")});
    return run.optimizer.param_groups()[0].options().get_lr();
  };
  EXPECT_EQ(train_to(1), 0.25);
  EXPECT_EQ(train_to(2), 0.0625);
}

TEST(LearningRateSchedulerTest, RefusesAScheduleOutOfRange) {
  ClickRun run;
  EXPECT_VALUE_ERROR(
      LearningRateScheduler(
          run.optimizer, optim::ExponentialDecay{.decay_steps = 0}),
      "[LearningRateScheduler]");
}

TEST(LearningRateSchedulerTest, RefusesARateThatIsNotFinite) {
  ClickRun run;
  EXPECT_VALUE_ERROR(
      run.train(
          click_batches(2, 1),
          {.epochs = 1,
           .callbacks = {LearningRateScheduler(
               run.optimizer,
               optim::ExponentialDecay{
                   .initial_learning_rate = 4.0,
                   .decay_steps = 1,
                   .decay_rate = 1e38})}}),
      "[LearningRateScheduler] the rate of step 1 must be finite and >= 0");
  EXPECT_EQ(run.optimizer.param_groups()[0].options().get_lr(), 4.0);
}

}  // namespace tessera::training::learning_rate_scheduler_test
