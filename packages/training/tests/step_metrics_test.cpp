// SPDX-License-Identifier: Apache-2.0
// What a step returns for metrics beside predictions, labels and weights.
#include <tessera/layers/combined.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/training/classification_metrics.h>
#include <tessera/training/predict.h>
#include <tessera/training/ranking_metrics.h>
#include <tessera/training/task_metrics.h>

#include "packages/training/tests/training_fixture.h"

namespace tessera::training::step_metrics_test {

TEST(StepMetricsTest, GroupsReachTheGroupedAUC) {
  const auto pass = make_pass(std::vector<int64_t>{0, 1}, [](int64_t user) {
    return StepResult{
        .loss = at::full({}, 1.0),
        .predictions = floats({0.1F, 0.9F}),
        .labels = int64s({user, 1 - user}),
        .groups = int64s({user, user})};
  });
  // Both also take the batches of a metric without groups.
  const Logs logs = evaluate(*pass, {GroupedAUC(), AUC()});
  EXPECT_EQ(logs["gauc"], 0.5);  // right for user 0, wrong for user 1
  EXPECT_EQ(logs["auc"], 0.5);
  const auto without = make_pass(std::vector<int64_t>{0}, [](int64_t) {
    return StepResult{
        .loss = at::full({}, 1.0),
        .predictions = floats({0.1F}),
        .labels = int64s({1})};
  });
  EXPECT_VALUE_ERROR(
      evaluate(*without, {GroupedAUC()}), "Return StepResult::groups");
}

TEST(StepMetricsTest, BagsOfLabelsReachTheRankingMetrics) {
  const auto pass = make_pass(std::vector<int64_t>{1, 2}, [](int64_t queries) {
    return StepResult{
        .loss = at::full({}, static_cast<double>(queries)),
        .predictions = int64s({5, 6, 7, 8}).view({2, 2}).slice(0, 0, queries),
        .labels = int64s({6, 9, 1, 7}).slice(0, 0, queries == 1 ? 3 : 4),
        .label_splits = int64s({0, 3, 4}).slice(0, 0, queries + 1)};
  });
  const Logs logs = evaluate(*pass, {RecallAtK()});
  EXPECT_DOUBLE_EQ(logs["recall_at_10"], (1.0 / 3.0 + 1.0 / 3.0 + 1.0) / 3.0);
  // The bags, and not the labels, count the examples of a batch.
  EXPECT_DOUBLE_EQ(logs["loss"], (1.0 * 1.0 + 2.0 * 2.0) / 3.0);
  EXPECT_VALUE_ERROR(evaluate(*pass, {AUC()}), "but got bags of labels");
}

// Two tasks with losses, of which "late" has the labels of one example only.
StepResult two_tasks(double loss, float score) {
  return {
      .tasks = {
          {.name = "early",
           .loss = at::full({}, loss),
           .predictions = floats({score, 0.5F}),
           .labels = int64s({1, 0})},
          {.name = "late",
           .loss = at::full({}, 10.0 * loss),
           .loss_weight = 0.25,
           .predictions = floats({0.25F}),
           .labels = int64s({1})}}};
}

TEST(TaskMetricsTest, TasksHaveMetricsAndWeights) {
  const auto pass = make_pass(std::vector<double>{1.0, 3.0}, [](double loss) {
    return two_tasks(loss, loss == 1.0 ? 0.75F : 0.25F);
  });
  const Metrics metrics{
      TaskMetric("early", AUC()),
      TaskMetric("late", Mean("mean_score")),
      TaskLoss("early"),
      TaskLoss("late")};
  for (int repeat = 0; repeat < 2; ++repeat) {  // evaluate() resets them
    const Logs logs = evaluate(*pass, metrics);
    EXPECT_DOUBLE_EQ(logs["loss"], 2.0 + 0.25 * 20.0);
    EXPECT_DOUBLE_EQ(logs["early_auc"], 0.5);
    EXPECT_DOUBLE_EQ(logs["late_mean_score"], 0.25);
    EXPECT_DOUBLE_EQ(logs["early_loss"], 2.0);
    EXPECT_DOUBLE_EQ(logs["late_loss"], 20.0);
  }
  EXPECT_EQ(metrics[0]->better(), Better::kHigher);
  EXPECT_EQ(metrics[0]->make_empty()->name(), "early_auc");
  EXPECT_EQ(metrics[2]->better(), Better::kLower);
  const at::Tensor state = metrics[0]->state();
  const auto copy = metrics[0]->make_empty();
  EXPECT_TRUE(std::isnan(copy->result()));
  copy->load_state(state);
  EXPECT_EQ(copy->result(), 0.5);
  // The loss of the step itself takes precedence.
  const StepResult own = to_step_result(
      StepResult{.loss = at::full({}, 7.0), .tasks = two_tasks(1, 0).tasks});
  EXPECT_EQ(own.loss.item<double>(), 7.0);
}

TEST(TaskMetricsTest, PredictionsHaveTasks) {
  const auto pass = make_pass(std::vector<double>{1.0, 3.0}, [](double loss) {
    return two_tasks(loss, static_cast<float>(loss));
  });
  const Predictions found = predict(*pass);
  EXPECT_FALSE(found.predictions.defined());
  ASSERT_EQ(found.tasks.size(), 2);
  EXPECT_EQ(found.tasks[0].name, "early");
  EXPECT_TRUE(
      found.tasks[0].predictions.equal(floats({1.0F, 0.5F, 3.0F, 0.5F})));
  EXPECT_TRUE(found.tasks[0].labels.equal(int64s({1, 0, 1, 0})));
  EXPECT_TRUE(found.tasks[1].predictions.equal(floats({0.25F, 0.25F})));
  const auto changing =
      make_pass(std::vector<double>{1.0, 3.0}, [](double loss) {
        StepResult result = two_tasks(loss, 0.0F);
        result.tasks[1].name = loss == 1.0 ? "late" : "later";
        return result;
      });
  EXPECT_VALUE_ERROR(
      predict(*changing),
      "batch 1 has the tasks [early, later], but batch 0 has [early, late]");
}

TEST(TaskMetricsTest, RefusesUnusableTasks) {
  const auto step = [](double loss) { return two_tasks(loss, 0.5F); };
  const std::vector<double> batches{1.0};
  EXPECT_VALUE_ERROR(
      evaluate(*make_pass(batches, step), {TaskMetric("never", AUC())}),
      "[evaluate] the metric 'never_auc' needs the task 'never', but the step "
      "gave [early, late]");
  EXPECT_VALUE_ERROR(
      evaluate(*make_pass(batches, step), {AUC()}),
      "metrics need predictions, but the step gave none. Return a StepResult "
      "with predictions and labels, or use a TaskMetric.");
  const auto changed = [&](auto change) {
    StepResult result = two_tasks(1.0, 0.5F);
    change(result.tasks);
    evaluate(
        *make_pass(batches, [&](double) { return result; }),
        {TaskLoss("late")});
  };
  EXPECT_VALUE_ERROR(
      changed([](auto& tasks) { tasks[1].name = "early"; }),
      "each task must have a name of its own, but got 'early' twice");
  EXPECT_VALUE_ERROR(
      changed([](auto& tasks) { tasks[1].name = ""; }), "but got ''");
  EXPECT_VALUE_ERROR(
      changed([](auto& tasks) { tasks[0].loss_weight = NAN; }),
      "task 'early': loss_weight must be finite");
  EXPECT_VALUE_ERROR(
      changed([](auto& tasks) {
        tasks[0].loss = floats({1.0F, 2.0F});
      }),
      "task 'early': the loss must be one floating-point number");
  EXPECT_VALUE_ERROR(
      changed([](auto& tasks) { tasks[1].loss = at::Tensor(); }),
      "[Metric 'late_loss'] the task has no loss");
  EXPECT_VALUE_ERROR(TaskMetric("", AUC()), "name of a task, but got ''");
  EXPECT_VALUE_ERROR(
      TaskMetric("a", std::shared_ptr<Metric>()), "but got nullptr");
  EXPECT_VALUE_ERROR(TaskLoss(""), "name of a task, but got ''");
}

// Weights of tasks reach the gradients.
TEST(TaskMetricsTest, AStepTrainsOnTheWeightedSum) {
  const at::Tensor weight = at::full({}, 1.0).requires_grad_(true);
  torch::optim::SGD optimizer({weight}, 1.0);
  auto step = make_train_step(optimizer, [&](double factor) {
    return StepResult{
        .tasks = {
            {.name = "a", .loss = factor * weight},
            {.name = "b", .loss = 10.0 * weight, .loss_weight = 0.5}}};
  });
  const StepResult result = step(2.0);
  EXPECT_EQ(result.loss.item<double>(), 2.0 + 5.0);
  EXPECT_FALSE(result.tasks[1].loss.requires_grad());
  EXPECT_EQ(weight.item<double>(), 1.0 - 7.0);
}

TEST(TrainStepTest, ClipsTheNormOfTheGradients) {
  const at::Tensor a = at::full({2}, 0.0).requires_grad_(true);
  const at::Tensor b = at::full({1}, 0.0).requires_grad_(true);
  torch::optim::SGD optimizer({a, b}, 1.0);
  auto step = make_train_step(
      optimizer,
      [&](double factor) {  // gradients (1, 2) and 2, of norm 3
        return factor * ((a * floats({1, 2})).sum() + 2.0 * b.sum());
      },
      {.max_gradient_norm = 1.5});
  step(1.0);
  EXPECT_TRUE(at::cat({a, b}).allclose(floats({-0.5F, -1.0F, -1.0F})));
  step(0.25);  // of norm 0.75
  EXPECT_TRUE(at::cat({a, b}).allclose(floats({-0.75F, -1.5F, -1.5F})));
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    EXPECT_VALUE_ERROR(
        make_train_step(
            optimizer,
            [](double) { return at::Tensor(); },
            {.max_gradient_norm = bad}),
        "max_gradient_norm must be finite and > 0");
  }
}

// The tables of a Combined belong to the same norm.
TEST(TrainStepTest, ClipsTheTablesOfACombined) {
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features =
          {{"a",
            feature_of(
                {.name = "t",
                 .vocabulary_size = 4,
                 .dim = 1,
                 .initializer = initializers::Zeros{}})}},
      .optimizer = optim::SGD{.learning_rate = 1.0},
      .apply = Apply::kOnStep});
  const at::Tensor dense = at::full({1}, 0.0).requires_grad_(true);
  std::vector<at::Tensor> parameters = layer->parameters();
  parameters.push_back(dense);
  Combined optimizer(torch::optim::SGD(parameters, 1.0), {layer});
  auto step = make_train_step(
      optimizer,
      [&](const at::Tensor& ids) {  // gradients 3 and 4, of norm 5
        return 3.0 * layer->forward({{"a", ids}})["a"].sum() +
            4.0 * dense.sum();
      },
      {.max_gradient_norm = 1.0});
  step(int64s({2}));
  EXPECT_NEAR(
      layer->embedding_tables()[std::string("t")][2].item<double>(),
      -0.6,
      1e-5);
  EXPECT_NEAR(dense.item<double>(), -0.8, 1e-5);
}

TEST(TrainStepTest, AllowedSkipsContinueTheTraining) {
  // Many operations of x86 give a NaN with this sign.
  const double nan = std::copysign(std::nan(""), -1.0);
  const auto run = [&](const std::vector<double>& losses, int64_t allowed) {
    const at::Tensor weight = at::full({}, 1.0).requires_grad_(true);
    torch::optim::SGD optimizer({weight}, 1.0);
    return fit(
        losses,
        make_train_step(
            optimizer,
            [&](double loss) { return loss + 0.0 * weight; },
            {.max_skipped_steps = allowed}),
        {.log_every_steps = 2});
  };
  Warnings warnings;
  const History history = run({1, nan, nan, 3, nan, 5}, 2);
  EXPECT_EQ(history["loss"], std::vector<double>{3.0});
  ASSERT_EQ(history.steps.size(), 3);
  EXPECT_EQ(history.steps[0].logs["loss"], 1.0);
  EXPECT_EQ(history.steps[1].logs["loss"], 3.0);
  EXPECT_EQ(history.steps[2].logs["loss"], 5.0);
  EXPECT_EQ(warnings.texts.size(), 2);  // after the first and the second one
  EXPECT_CONTAINS(warnings.texts[0], "the loss of a step is NaN");
  EXPECT_CONTAINS(warnings.texts[1], "2 updates were skipped so far");
  EXPECT_VALUE_ERROR(
      run({1, nan, nan, nan, 5}, 2),
      "the loss of step 4 is NaN, so its update was skipped");
  EXPECT_VALUE_ERROR(run({1, nan}, 0), "max_skipped_steps allows some");
  EXPECT_VALUE_ERROR(run({1}, -1), "max_skipped_steps must be >= 0");
}

// The last step of an epoch may be a skipped one: its weights are good.
TEST(TrainStepTest, AnEpochThatEndsWithASkipIsSaved) {
  const TemporaryFolder folder;
  ClickRun run(0);
  int64_t steps = 0;
  const auto loss_of = [&](const ClickBatch& batch) {
    StepResult result = run.loss_of()(batch);
    result.loss = result.loss * (++steps == 3 ? std::nan("") : 1.0);
    return result;
  };
  Warnings warnings;
  fit(click_batches(3, 1),
      make_train_step(run.optimizer, loss_of, {.max_skipped_steps = 1}),
      {.checkpoint = run.checkpoint(folder / "run")});
  EXPECT_TRUE(has_weights(*run.model, folder / "run"));
}

}  // namespace tessera::training::step_metrics_test
