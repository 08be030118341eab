// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of packages/training/include/tessera/training/ and of
// include/tessera/common/profile_scope.h and precision.h, which check_docs.cmake compares with them.
#include <tessera/tessera.h>

#include "tests/docs/pages_fixture.h"
#include "tests/test_util.h"

#include <signal.h>

#include <cstdio>

namespace tessera::training::reference_training_test {

struct Batch {
  Features features;
  at::Tensor click;
  at::Tensor purchase = {};
};

/// Users with even ids click.
std::vector<Batch> make_batches(int64_t count) {
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor ids = torch::arange(8) + i;
    batches.push_back(
        {.features = {{"user", ids}},
         .click = (ids % 2 == 0).to(at::kFloat),
         .purchase = (ids % 4 == 0).to(at::kFloat)});
  }
  return batches;
}

class TrainingReferenceTest : public test::PagesTest {
 protected:
  TrainingReferenceTest() {
    loss_of = [this](const Batch& batch) {
      const auto scores = model->forward(batch.features).squeeze(1);
      return StepResult{
          .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
          .predictions = scores,
          .labels = batch.click};
    };
    step = make_train_step(optimizer, loss_of);
  }

  const std::vector<Batch> batches = make_batches(5);
  const std::vector<Batch> test_batches = make_batches(2);
  TPUEmbedding embedding{
      {{"user",
        FeatureConfig{
            .table = make_table(
                {.name = "users", .vocabulary_size = 20, .dim = 4})}}},
      optim::Adagrad{.learning_rate = 0.5}};
  torch::nn::Sequential model{
      embedding,
      Concatenate(),
      torch::nn::Linear(4, 1)};
  torch::optim::Adam optimizer{model->parameters(), 0.05};
  std::function<StepResult(const Batch&)> loss_of;
  std::function<StepResult(const Batch&)> step;
};

// Steps and loops.

TEST_F(TrainingReferenceTest, MakeTrainStep) {
  // snippet: make_train_step
  auto step = make_train_step(optimizer, [&](const Batch& batch) {
    const auto scores = model->forward(batch.features).squeeze(1);
    return StepResult{
        .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
        .predictions = scores,
        .labels = batch.click};
  });
  double total = 0.0;
  for (const Batch& batch : batches) {
    total += step(batch).loss.item<double>();
  }
  // end snippet
  EXPECT_GT(total, 0.0);
  EXPECT_EQ(embedding->iterations(), 5);
}

TEST_F(TrainingReferenceTest, ProfileScope) {
  // snippet: ProfileScope
  const auto scores_of = [&](const Batch& batch) {
    const ProfileScope scope("scores");
    return model->forward(batch.features).squeeze(1);
  };
  // end snippet
  EXPECT_EQ(scores_of(batches[0]).numel(), 8);
}

TEST_F(TrainingReferenceTest, PrecisionScope) {
  const Batch& batch = batches[0];
  // snippet: PrecisionScope
  at::Tensor scores;
  {
    const PrecisionScope scope(Precision::kBFloat16);
    scores = model->forward(batch.features).squeeze(1).to(torch::kFloat);
  }
  torch::binary_cross_entropy_with_logits(scores, batch.click).backward();
  // end snippet
  EXPECT_EQ(embedding->iterations(), 1);
}

TEST_F(TrainingReferenceTest, TrainStepOptions) {
  // snippet: TrainStepOptions
  auto step = make_train_step(optimizer, loss_of, {.model = model});
  // end snippet
  EXPECT_FALSE(step(batches[0]).is_skipped);
  EXPECT_EQ(embedding->iterations(), 1);
  // snippet: TrainStepOptions_precision
  auto mixed =
      make_train_step(optimizer, loss_of, {.precision = Precision::kBFloat16});
  // end snippet
  EXPECT_EQ(mixed(batches[0]).loss.scalar_type(), at::kFloat);
  EXPECT_EQ(embedding->iterations(), 2);
  // snippet: TrainStepOptions_clipped
  auto clipped = make_train_step(
      optimizer, loss_of, {.max_gradient_norm = 1.0, .max_skipped_steps = 3});
  // end snippet
  EXPECT_FALSE(clipped(batches[0]).is_skipped);
}

TEST_F(TrainingReferenceTest, TaskMetric) {
  torch::nn::Sequential model(
      embedding, Concatenate(), torch::nn::Linear(4, 2));
  torch::optim::Adam optimizer(model->parameters(), 0.05);
  // snippet: TaskResult
  const auto loss_of = [&](const Batch& batch) {
    const auto scores = model->forward(batch.features);  // [batch, 2]
    TaskResult click{
        .name = "click",
        .predictions = scores.select(1, 0),
        .labels = batch.click};
    click.loss = torch::binary_cross_entropy_with_logits(
        click.predictions, click.labels);
    TaskResult purchase{
        .name = "purchase",
        .loss_weight = 0.5,
        .predictions = scores.select(1, 1),
        .labels = batch.purchase};
    purchase.loss = torch::binary_cross_entropy_with_logits(
        purchase.predictions, purchase.labels);
    return StepResult{.tasks = {click, purchase}};
  };
  // end snippet
  // snippet: TaskMetric
  const History history =
      fit(batches,
          make_train_step(optimizer, loss_of),
          {.epochs = 2,
           .metrics = {
               std::make_shared<TaskMetric>("click", AUC()),
               std::make_shared<TaskMetric>("purchase", AUC()),
               std::make_shared<TaskLoss>("purchase")}});
  const double auc = history["purchase_auc"].back();
  // end snippet
  EXPECT_GT(auc, 0.5);
  EXPECT_GT(history["click_auc"].back(), 0.5);
  EXPECT_LT(history["purchase_loss"][1], history["purchase_loss"][0]);
}

TEST_F(TrainingReferenceTest, Fit) {
  const auto& train_batches = batches;
  // snippet: fit
  const auto loss_of = [&](const Batch& batch) {
    const auto scores = model->forward(batch.features).squeeze(1);
    return StepResult{
        .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
        .predictions = scores,
        .labels = batch.click};
  };
  const History history =
      fit(train_batches,
          make_train_step(optimizer, loss_of),
          {.epochs = 10,
           .model = model,
           .metrics = {AUC()},
           .validation = make_pass(test_batches, loss_of),
           .callbacks = {ProgressBar()}});
  const double auc = history["val_auc"].back();  // of the last epoch
  // end snippet
  EXPECT_EQ(history.epochs.size(), 10);
  EXPECT_EQ(auc, 1.0);
}

TEST_F(TrainingReferenceTest, PointerOrValue) {
  const auto step = make_train_step(optimizer, [&](const Batch& batch) {
    StepResult result = loss_of(batch);
    result.predictions = result.predictions.sigmoid();
    return result;
  });
  // snippet: PointerOrValue
  const auto auc = std::make_shared<AUC>();  // is read after the training
  fit(batches, step, {.model = model, .metrics = {auc, LogLoss()}});
  std::cout << auc->result() << "\n";
  // end snippet
  EXPECT_GE(auc->result(), 0.0);
}

TEST_F(TrainingReferenceTest, Pass) {
  fit(batches, step, {.epochs = 10});
  // snippet: Pass
  const std::shared_ptr<Pass> pass = make_pass(test_batches, loss_of);
  const Logs logs = evaluate(*pass, {std::make_shared<AUC>()});
  std::cout << logs["loss"] << " " << logs["auc"] << "\n";
  // end snippet
  EXPECT_EQ(logs["auc"], 1.0);
}

TEST_F(TrainingReferenceTest, Predictions) {
  // snippet: Predictions
  model->eval();
  const Predictions found = predict(*make_pass(test_batches, loss_of));
  // found.predictions and found.labels: [examples]
  // end snippet
  EXPECT_EQ(found.predictions.numel(), 2 * 8);
  EXPECT_TRUE(at::equal(found.labels.narrow(0, 8, 8), test_batches[1].click));
}

TEST_F(TrainingReferenceTest, StopSignal) {
  int64_t count = 0;
  const auto next_batch = [&] {
    if (++count == 3) {
      ::raise(SIGINT);
    }
    return batches[0];
  };
  // snippet: StopSignal
  const StopSignal signal;
  while (signal.name() == nullptr) {
    step(next_batch());
  }
  save_weights(*model, "run");
  // end snippet
  EXPECT_EQ(count, 3);
  EXPECT_TRUE(has_weights(*model, "run"));
}

TEST_F(TrainingReferenceTest, Checkpoint) {
  {
    // snippet: Checkpoint
    const auto checkpoint = std::make_shared<Checkpoint>(
        "run/checkpoints",
        model,
        optimizer,
        TrainingCheckpointOptions{.every_steps = 1000});
    fit(batches, step, {.epochs = 2, .checkpoint = checkpoint});
    // end snippet
    EXPECT_EQ(embedding->iterations(), 10);
  }
  const auto again =
      std::make_shared<Checkpoint>("run/checkpoints", model.ptr(), optimizer);
  const History history =
      fit(batches, step, {.epochs = 3, .checkpoint = again});
  EXPECT_EQ(history.epochs.size(), 3);
  EXPECT_EQ(embedding->iterations(), 15);
}

// Callbacks.

TEST_F(TrainingReferenceTest, Callback) {
  // snippet: Callback
  class ExampleLimit : public Callback {
   public:
    void on_step_end(Training& training) override {
      const Progress& progress = training.progress();
      if (progress.examples >= 24) {
        training.stop("24 examples");
      }
    }
  };
  const auto limit = std::make_shared<ExampleLimit>();
  const History history = fit(batches, step, {.callbacks = {limit}});
  // end snippet
  EXPECT_EQ(history.stop_reason, "24 examples");
  EXPECT_EQ(embedding->iterations(), 3);
}

TEST_F(TrainingReferenceTest, EarlyStopping) {
  // snippet: EarlyStopping
  const auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{
      .monitor = "loss", .patience = 2, .restore_best = model});
  const History history =
      fit(batches, step, {.epochs = 5, .callbacks = {stopping}});
  // end snippet
  const std::vector<double> losses = history["loss"];
  EXPECT_EQ(stopping->best(), *std::min_element(losses.begin(), losses.end()));
  EXPECT_EQ(losses.at(stopping->best_epoch()), stopping->best());
}

TEST_F(TrainingReferenceTest, EarlyStoppingInALoop) {
  std::vector<double> losses{3.0, 2.0, 2.5, 2.1, 1.0};
  const auto train_epoch = [&] {
    const double loss = losses.front();
    losses.erase(losses.begin());
    return loss;
  };
  // snippet: EarlyStopping_loop
  EarlyStopping stopping({.patience = 2, .better = Better::kLower});
  for (int64_t epoch = 0; epoch < 10 && !stopping.is_done(); ++epoch) {
    const double loss = train_epoch();
    if (stopping.update(epoch, loss)) {
      save_weights(*model, "run/best");
    }
  }
  // end snippet
  EXPECT_EQ(losses.size(), 1);
  EXPECT_EQ(stopping.best_epoch(), 1);
  EXPECT_TRUE(has_weights(*model, "run/best"));
}

TEST_F(TrainingReferenceTest, ProgressBar) {
  std::FILE* log_file = std::tmpfile();
  ASSERT_NE(log_file, nullptr);
  {
    // snippet: ProgressBar
    ProgressBar bar({.stream = log_file, .plain_interval = 60.0});
    Progress progress{.epochs = 1, .steps_per_epoch = std::ssize(batches)};
    for (const Batch& batch : batches) {
      const double loss = step(batch).loss.item<double>();
      ++progress.step_in_epoch;
      ++progress.step;
      bar.show(progress, {{"loss", loss}});
    }
    bar.end_epoch(progress, {});
    // end snippet
  }
  std::string text(1000, ' ');
  std::rewind(log_file);
  text.resize(std::fread(text.data(), 1, text.size(), log_file));
  std::fclose(log_file);
  EXPECT_CONTAINS(text, "epoch 1/1  5 steps");
}

TEST_F(TrainingReferenceTest, Profile) {
  // snippet: Profile
  const auto profile = std::make_shared<Profile>();
  fit(batches, step, {.callbacks = {profile}});
  std::cout << profile->text();
  for (const Profile::Row& row : profile->result()) {
    std::cout << row.phase << " " << row.share << "\n";
  }
  // end snippet
  EXPECT_EQ(profile->steps(), 5);
  EXPECT_CONTAINS(profile->text(), "table update");
}

TEST_F(TrainingReferenceTest, TerminateOnNonFinite) {
  std::vector<Batch> batches = make_batches(5);
  batches[2].click.fill_(NAN);
  // snippet: TerminateOnNonFinite
  const auto terminate = std::make_shared<TerminateOnNonFinite>();
  const History history =
      fit(batches, step, {.epochs = 10, .callbacks = {terminate}});
  std::cout << history.stop_reason << "\n";
  // end snippet
  EXPECT_CONTAINS(history.stop_reason, "NaN");
  EXPECT_EQ(embedding->iterations(), 2);
}

TEST_F(TrainingReferenceTest, LearningRateScheduler) {
  // snippet: LearningRateScheduler
  const auto scheduler = std::make_shared<LearningRateScheduler>(
      optimizer,
      optim::CosineDecay{.initial_learning_rate = 1e-3, .decay_steps = 10'000});
  fit(batches, step, {.callbacks = {scheduler}});
  // end snippet
  EXPECT_NEAR(optimizer.param_groups()[0].options().get_lr(), 1e-3, 1e-8);
}

TEST_F(TrainingReferenceTest, LearningRateLog) {
  // snippet: LearningRateLog
  const auto rates =
      std::make_shared<LearningRateLog>(optimizer, TableModules{embedding});
  const History history =
      fit(batches, step, {.epochs = 2, .callbacks = {rates}});
  const std::vector<double> of_users = history["learning_rate_users"];
  // end snippet
  EXPECT_EQ(of_users, (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(history["learning_rate"], (std::vector<double>{0.05, 0.05}));
}

// History.

TEST_F(TrainingReferenceTest, Logs) {
  // snippet: Logs
  Logs logs{{"loss", 0.43}};
  logs.set("auc", 0.79);
  const double auc = logs["auc"];
  // end snippet
  EXPECT_EQ(auc, 0.79);
  EXPECT_EQ(logs.entries().size(), 2);
}

TEST_F(TrainingReferenceTest, History) {
  // snippet: History
  const History history = fit(batches, step, {.epochs = 3});
  for (const History::Record& record : history.epochs) {
    std::cout << record.epoch << " " << record.logs["loss"] << "\n";
  }
  const std::vector<double> losses = history["loss"];  // one per epoch
  // end snippet
  ASSERT_EQ(losses.size(), 3);
  EXPECT_LT(losses[2], losses[0]);
  EXPECT_EQ(history.epochs[1].logs["loss"], losses[1]);
}

TEST_F(TrainingReferenceTest, CsvHistory) {
  // snippet: CsvHistory
  const auto csv = std::make_shared<CsvHistory>("history.csv");
  const History history = fit(batches, step, {.epochs = 3, .callbacks = {csv}});
  // end snippet
  EXPECT_EQ(test::read_text("history.csv"), to_csv(history));
}

TEST_F(TrainingReferenceTest, JsonHistory) {
  // snippet: JsonHistory
  const auto json = std::make_shared<JsonHistory>("history.json");
  fit(batches, step, {.epochs = 3, .callbacks = {json}});
  const History read = history_from_json(load_json("history.json"));
  // end snippet
  EXPECT_EQ(read["loss"].size(), 3);
}

TEST_F(TrainingReferenceTest, LearningCurves) {
  // snippet: LearningCurves
  const auto curves = std::make_shared<LearningCurves>(
      "curves.svg",
      LearningCurvesOptions{.names = {"loss"}, .title = "Clicks"});
  fit(batches, step, {.epochs = 3, .callbacks = {curves}});
  // end snippet
  const std::string text = test::read_text("curves.svg");
  EXPECT_CONTAINS(text, "Clicks");
  EXPECT_CONTAINS(text, "loss");
}

// Metrics.

TEST_F(TrainingReferenceTest, Metric) {
  fit(batches, step, {.epochs = 10});
  // snippet: Metric
  LogLoss log_loss({.scores = ScoreKind::kLogits});
  for (const Batch& batch : test_batches) {
    log_loss.update(model->forward(batch.features), batch.click);
  }
  std::cout << log_loss.name() << " " << log_loss.result() << "\n";
  // end snippet
  EXPECT_NEAR(
      log_loss.result(),
      evaluate(*make_pass(test_batches, loss_of))["loss"],
      1e-5);
}

TEST_F(TrainingReferenceTest, AUC) {
  const auto scores = torch::tensor({0.9F, 0.4F, 0.6F});
  const auto clicks = torch::tensor({1.0F, 0.0F, 1.0F});
  // snippet: AUC
  AUC auc;
  auc.update(scores, clicks);
  const double area = auc.result();  // 1: each click has a higher score
  // end snippet
  EXPECT_EQ(area, 1.0);
}

TEST_F(TrainingReferenceTest, LogLoss) {
  const auto logits = torch::tensor({0.0F, 100.0F});
  const auto clicks = torch::tensor({0.0F, 1.0F});
  // snippet: LogLoss
  LogLoss log_loss({.scores = ScoreKind::kLogits});
  log_loss.update(logits, clicks);
  const double loss = log_loss.result();
  // end snippet
  EXPECT_NEAR(loss, std::log(2.0) / 2, 1e-6);
}

TEST_F(TrainingReferenceTest, RMSE) {
  // snippet: RMSE
  RMSE rmse;
  rmse.update(torch::tensor({3.0F, 5.0F}), torch::tensor({4.0F, 2.0F}));
  const double error = rmse.result();  // sqrt((1 + 9) / 2)
  // end snippet
  EXPECT_NEAR(error, std::sqrt(5.0), 1e-9);
}

TEST_F(TrainingReferenceTest, Accuracy) {
  const auto logits = torch::tensor({-0.5F, 0.2F, 0.1F, -3.0F});
  const auto clicks = torch::tensor({0.0F, 1.0F, 0.0F, 0.0F});
  // snippet: Accuracy
  Accuracy accuracy({.threshold = 0.0});  // for logits
  accuracy.update(logits, clicks);
  const double share = accuracy.result();
  // end snippet
  EXPECT_EQ(share, 0.75);
}

TEST_F(TrainingReferenceTest, TopKAccuracy) {
  const auto scores = torch::tensor({{0.1F, 0.5F, 0.4F}, {0.1F, 0.5F, 0.4F}});
  const auto classes = torch::tensor({2, 0});
  // snippet: TopKAccuracy
  TopKAccuracy accuracy({.k = 2});
  accuracy.update(scores, classes);  // scores [n, classes]
  const double share = accuracy.result();
  // end snippet
  EXPECT_EQ(share, 0.5);
  EXPECT_EQ(accuracy.name(), "top_2_accuracy");
}

TEST_F(TrainingReferenceTest, Mean) {
  const auto probabilities = torch::tensor({0.25F, 0.75F, 0.5F});
  // snippet: Mean
  Mean mean("mean_probability");
  mean.update(probabilities);
  const double probability = mean.result();
  // end snippet
  EXPECT_EQ(probability, 0.5);
}

}  // namespace tessera::training::reference_training_test
