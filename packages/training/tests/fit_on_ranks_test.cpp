// SPDX-License-Identifier: Apache-2.0
// What fit() adds to a training on several ranks: it trains and logs what one process would
// with the batches of all ranks. The test runs with any number of ranks.
#include <tessera/engine/sum_gradients.h>
#include <tessera/layers/dense_parameters.h>
#include <tessera/training/calibration_metrics.h>
#include <tessera/training/classification_metrics.h>
#include <tessera/training/retrieval_metrics.h>
#include <tessera/training/task_metrics.h>

#include "packages/distributed/tests/sharded_layers.h"
#include "packages/training/tests/training_fixture.h"

namespace tessera::training::fit_on_ranks_test {

constexpr int64_t kSteps = 3;

// The batches of one rank. Ranks have batches of different sizes.
std::vector<ClickBatch> batches_of(int64_t rank, uint64_t seed) {
  std::vector<ClickBatch> batches =
      click_batches(kSteps, seed + static_cast<uint64_t>(rank));
  for (ClickBatch& batch : batches) {
    const int64_t size = 8 - rank;
    batch = {
        batch.user.slice(0, 0, size),
        batch.movie.slice(0, 0, size),
        batch.click.slice(0, 0, size)};
  }
  return batches;
}

std::vector<ClickBatch> all_batches(uint64_t seed) {
  std::vector<ClickBatch> joined;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> users, movies, clicks;
    for (int64_t i = 0; i < ranks(); ++i) {
      const ClickBatch batch = batches_of(i, seed)[step];
      users.push_back(batch.user);
      movies.push_back(batch.movie);
      clicks.push_back(batch.click);
    }
    joined.push_back({at::cat(users), at::cat(movies), at::cat(clicks)});
  }
  return joined;
}

struct ModelImpl : torch::nn::Module {
  ModelImpl(const Strategy& strategy, uint64_t seed) {
    at::manual_seed(seed);
    tables = register_module(
        "tables",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"user", feature_of("users", 20, 4)},
                 {"movie", feature_of("movies", 10, 4)}},
            .optimizer = optim::SGD{.learning_rate = 0.5},
            .strategy = strategy}));
    tower = register_module("tower", torch::nn::Linear(8, 1));
  }

  at::Tensor forward(const ClickBatch& batch) {
    return tower
        ->forward(join->forward(
            tables->forward({{"user", batch.user}, {"movie", batch.movie}})))
        .squeeze(1);
  }

  TPUEmbedding tables{nullptr};
  Concatenate join;
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(Model);

// A model that all ranks train, or one process alone.
struct ModelRun {
  explicit ModelRun(const Strategy& strategy, uint64_t seed = 3)
      : model(strategy, seed) {}

  auto loss_of() {
    return [this](const ClickBatch& batch) {
      int64_t examples = 0;  // of all ranks
      for (int64_t i = 0; i < ranks(); ++i) {
        examples += 8 - i;
      }
      const at::Tensor scores = model->forward(batch);
      StepResult result{
          .loss = at::binary_cross_entropy_with_logits(
                      scores, batch.click, {}, {}, at::Reduction::Sum) /
              static_cast<double>(examples),
          .predictions = scores,
          .labels = batch.click,
          .groups = batch.user};
      return result;
    };
  }
  auto train_step(TrainStepOptions options = {}) {
    return make_train_step(optimizer, loss_of(), std::move(options));
  }
  at::Tensor weights() {
    return at::cat(
        {model->tables->read_rows("users", 0, 20).flatten(),
         model->tables->read_rows("movies", 0, 10).flatten(),
         model->tower->weight.detach().flatten(),
         model->tower->bias.detach()});
  }

  Model model;
  torch::optim::SGD optimizer{model->parameters(), 0.5};
};

// The weights after two epochs of one process with the batches of all ranks.
at::Tensor expected_weights() {
  ModelRun single(Strategy::fused());
  fit(all_batches(10), single.train_step(), {.epochs = 2});
  return single.weights();
}

void expect_trained(ModelRun& run) {
  const at::Tensor found = run.weights();
  EXPECT_TRUE(at::allclose(found, expected_weights(), 1e-5, 1e-6));
  ModelRun fresh(Strategy::fused());
  EXPECT_FALSE(at::allclose(found, fresh.weights(), 1e-2, 1e-2));
  // The dense weights are equal bit for bit.
  const std::string bytes = text_of(as_bytes(at::cat(
      {run.model->tower->weight.detach().flatten(),
       run.model->tower->bias.detach()})));
  for (const std::string& other : group()->all_gather(bytes)) {
    EXPECT_EQ(other, bytes);
  }
}

TEST(FitOnRanksTest, ForgottenOptionsGiveTheWeightsOfOneProcess) {
  for (const bool sets_strategy : {false, true}) {
    ModelRun run(test::sharded());
    FitOptions options{.epochs = 2, .model = run.model};
    if (sets_strategy) {
      options.strategy = test::sharded();
    }
    fit(batches_of(rank(), 10), run.train_step(), options);
    expect_trained(run);
  }
}

TEST(FitOnRanksTest, AStepThatIsWrappedInAnotherHasTheOptionsOfFit) {
  ModelRun run(test::sharded());
  auto step = run.train_step();
  fit(batches_of(rank(), 10),
      [&](const ClickBatch& batch) { return step(batch); },
      {.epochs = 2, .model = run.model});
  expect_trained(run);
}

TEST(FitOnRanksTest, ALoopWithoutFitNeedsOnlyTheModel) {
  ModelRun run(test::sharded());
  auto step = run.train_step({.model = run.model});
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (const ClickBatch& batch : batches_of(rank(), 10)) {
      step(batch);
    }
  }
  expect_trained(run);
}

TEST(FitOnRanksTest, DenseParametersOfTheOptionsNeedNotHaveAll) {
  ModelRun run(test::sharded());
  fit(batches_of(rank(), 10),
      run.train_step({.dense_parameters = {run.model->tower->bias}}),
      {.epochs = 2, .model = run.model});
  expect_trained(run);
}

TEST(FitOnRanksTest, StepsThatDoNotKnowTheStrategyAreRefused) {
  NEEDS_TWO_RANKS();
  ModelRun run(test::sharded());
  const at::Tensor before = run.weights();
  auto step = run.train_step();
  const std::string text =
      "[make_train_step] the loss depends on sharded tables, but the step has "
      "no sharded strategy";
  EXPECT_VALUE_ERROR(step(batches_of(rank(), 10)[0]), text);
  EXPECT_VALUE_ERROR(fit(batches_of(rank(), 10), run.train_step(), {}), text);
  EXPECT_TRUE(at::equal(run.weights(), before));
}

TEST(FitOnRanksTest, ContradictionsAreRefusedBeforeTheTraining) {
  ModelRun run(test::sharded());
  bool has_begun = false;
  const auto hooks = std::make_shared<Hooks>();
  hooks->train_begin = [&](Training&) { has_begun = true; };
  EXPECT_VALUE_ERROR(
      fit(batches_of(rank(), 10),
          run.train_step({.strategy = Strategy::fused()}),
          {.model = run.model, .callbacks = {hooks}}),
      "the strategy of the step is fused, but that of fit() is sharded");
  ModelRun single(Strategy::fused());
  EXPECT_VALUE_ERROR(
      fit(batches_of(rank(), 10),
          single.train_step({.model = run.model}),
          {.model = single.model, .callbacks = {hooks}}),
      "the strategy of the step is sharded, but that of fit() is fused. Set FitOptions::strategy to that of the step");
  EXPECT_FALSE(has_begun);
  EXPECT_VALUE_ERROR(
      run.train_step({.model = run.model, .strategy = Strategy::fused()}),
      "that of the tables of TrainStepOptions::model is sharded");
}

TEST(FitOnRanksTest, OtherSeedsAreAnErrorOnAllRanks) {
  NEEDS_TWO_RANKS();
  const uint64_t seed = is_last() ? 4 : 3;
  const std::string text =
      "the dense weights must be equal on all ranks, but those of rank " +
      std::to_string(ranks() - 1) +
      " differ from those of rank 0. Call broadcast_parameters()";
  ModelRun run(test::sharded(), seed);
  const at::Tensor before = run.weights();
  EXPECT_VALUE_ERROR(
      fit(batches_of(rank(), 10), run.train_step(), {.model = run.model}),
      "[make_train_step] at the first step, " + text);
  auto step = run.train_step({.model = run.model});
  EXPECT_VALUE_ERROR(step(batches_of(rank(), 10)[0]), text);
  EXPECT_TRUE(at::equal(run.weights(), before));
  // The values of rank 0 are those of the right seed.
  distributed::broadcast_parameters(
      dense_parameters(*run.model), test::sharded());
  fit(batches_of(rank(), 10),
      run.train_step(),
      {.epochs = 2, .model = run.model});
  expect_trained(run);
}

TEST(FitOnRanksTest, AnOwnStepThatSumsNoGradientsIsAnErrorOnAllRanks) {
  NEEDS_TWO_RANKS();
  for (const bool sums : {true, false}) {
    ModelRun run(test::sharded());
    const auto train = [&] {
      fit(batches_of(rank(), 10),
          [&](const ClickBatch& batch) {
            run.optimizer.zero_grad();
            StepResult result = run.loss_of()(batch);
            result.loss.backward();
            if (sums) {
              distributed::sum_gradients(
                  dense_parameters(*run.model), test::sharded());
            }
            run.optimizer.step();
            return result;
          },
          {.epochs = 2, .model = run.model});
    };
    if (sums) {
      train();
      expect_trained(run);
    } else {
      EXPECT_VALUE_ERROR(train(), "In each step, call sum_gradients()");
    }
  }
}

// A metric that has no merge(): the largest prediction.
class Largest : public Metric {
 public:
  Largest() : Metric("largest") {}
  void update(
      const at::Tensor& predictions,
      const at::Tensor& /*labels*/,
      const at::Tensor& /*weights*/) override {
    value_ = std::max(value_, predictions.max().item<double>());
  }
  double result() const override {
    return value_;
  }
  void reset() override {
    value_ = -1e9;
  }
  std::unique_ptr<Metric> make_empty() const override {
    return std::make_unique<Largest>();
  }
  at::Tensor state() const override {
    return at::tensor({value_}, at::kDouble);
  }
  void load_state(const at::Tensor& state) override {
    value_ = state.item<double>();
  }

 private:
  double value_ = -1e9;
};

FitOptions logging_options(ModelRun& run, std::vector<ClickBatch> validation) {
  return {
      .epochs = 2,
      .model = run.model,
      .metrics =
          {AUC(),
           AveragePrecision(),
           GroupedAUC(),
           LogLoss({.scores = ScoreKind::kLogits}),
           NormalizedEntropy({.scores = ScoreKind::kLogits}),
           CalibrationError({.scores = ScoreKind::kLogits}),
           Accuracy({.threshold = 0.0}),
           RMSE(),
           Mean()},
      .validation = make_pass(std::move(validation), run.loss_of()),
      .log_every_steps = 1};
}

void expect_near(const Logs& found, const Logs& expected) {
  ASSERT_EQ(found.entries().size(), expected.entries().size());
  for (const auto& [name, value] : expected.entries()) {
    EXPECT_NEAR(found[name], value, 1e-5) << name;
  }
}

// Texts that are equal on all ranks.
void expect_equal_on_ranks(const std::string& text) {
  for (const std::string& other : group()->all_gather(text)) {
    EXPECT_EQ(other, text);
  }
}

TEST(FitOnRanksTest, LossAndMetricsAreThoseOfOneProcess) {
  ModelRun run(test::sharded());
  ModelRun single(Strategy::fused());
  FitOptions options = logging_options(run, batches_of(rank(), 50));
  Logs seen;
  int64_t examples = 0;
  const auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [&](Training& training) {
    seen = training.logs();
    examples = training.progress().examples;
  };
  options.callbacks = {hooks};
  const History found = fit(batches_of(rank(), 10), run.train_step(), options);
  const Logs last = seen;
  const int64_t found_examples = examples;
  options = logging_options(single, all_batches(50));
  options.callbacks = {hooks};
  const History expected = fit(all_batches(10), single.train_step(), options);
  EXPECT_EQ(found_examples, examples);
  expect_near(last, seen);
  ASSERT_EQ(found.epochs.size(), expected.epochs.size());
  for (size_t i = 0; i < found.epochs.size(); ++i) {
    expect_near(found.epochs[i].logs, expected.epochs[i].logs);
  }
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < found.steps.size(); ++i) {
    expect_near(found.steps[i].logs, expected.steps[i].logs);
  }
  expect_equal_on_ranks(to_json(found).dump());
}

TEST(FitOnRanksTest, AMetricWithoutMergeIsLoggedForEachRank) {
  ModelRun run(test::sharded());
  const auto own = std::make_shared<Largest>();
  EXPECT_RAISES(
      c10::NotImplementedError,
      own->merge(own->state()),
      "[Metric 'largest'] it cannot be merged");
  const History history =
      fit(batches_of(rank(), 10),
          run.train_step(),
          {.model = run.model, .metrics = {own, Mean()}, .log_every_steps = 1});
  const auto name = [](int64_t i) {
    return ranks() == 1 ? std::string("largest")
                        : "largest_rank_" + std::to_string(i);
  };
  EXPECT_EQ(history[name(rank())].back(), own->result());
  const Logs& logs = history.epochs[0].logs;
  EXPECT_EQ(logs.entries().size(), static_cast<size_t>(2 + ranks()));
  for (int64_t i = 0; i < ranks(); ++i) {
    EXPECT_NE(logs.find(name(i)), nullptr);
    EXPECT_NE(history.steps[0].logs.find(name(i)), nullptr);
  }
  expect_equal_on_ranks(to_json(history).dump());
}

// A metric whose state is a list: the sum of the predictions of ranks that keep them.
class Kept : public Metric {
 public:
  Kept(bool keeps, bool is_strict)
      : Metric("kept"), keeps_(keeps), is_strict_(is_strict) {}
  void update(
      const at::Tensor& predictions,
      const at::Tensor& /*labels*/,
      const at::Tensor& /*weights*/) override {
    if (keeps_) {
      values_.push_back(predictions.sum().item<double>());
    }
  }
  double result() const override {
    return std::accumulate(values_.begin(), values_.end(), 0.0);
  }
  void reset() override {
    values_.clear();
  }
  std::unique_ptr<Metric> make_empty() const override {
    return std::make_unique<Kept>(keeps_, is_strict_);
  }
  at::Tensor state() const override {
    return at::tensor(values_, at::kDouble);
  }
  void load_state(const at::Tensor& state) override {
    values_.clear();
    merge(state);
  }
  void merge(const at::Tensor& state) override {
    TORCH_CHECK_VALUE(!is_strict_ || state.numel() > 0, "empty state");
    const auto* begin = state.const_data_ptr<double>();
    values_.insert(values_.end(), begin, begin + state.numel());
  }

 private:
  bool keeps_;
  bool is_strict_;
  std::vector<double> values_;
};

TEST(FitOnRanksTest, EmptyStatesOfSomeRanksAreMerged) {
  for (const bool is_strict : {false, true}) {
    ModelRun run(test::sharded());
    const auto kept =
        std::make_shared<Kept>(is_strict || rank() == 0, is_strict);
    const History history =
        fit(batches_of(rank(), 10),
            run.train_step(),
            {.model = run.model, .metrics = {kept}, .log_every_steps = 1});
    ASSERT_NE(history.epochs[0].logs.find("kept"), nullptr);
    ASSERT_NE(history.steps[0].logs.find("kept"), nullptr);
    EXPECT_NE(history["kept"].back(), 0.0);
    if (rank() == 0 && (!is_strict || ranks() == 1)) {
      EXPECT_DOUBLE_EQ(history["kept"].back(), kept->result());
    }
    expect_equal_on_ranks(to_json(history).dump());
  }
}

TEST(FitOnRanksTest, AStepThatOneRankSkipsDoesNotCountInTheLoss) {
  const History history =
      fit(batches_of(rank(), 10),
          [step = 0](const ClickBatch& /*batch*/) mutable {
            const bool is_skipped = step++ == 1 && is_last();
            return StepResult{
                .loss = at::tensor(is_skipped ? std::nan("") : 1.0),
                .is_skipped = is_skipped,
                .is_skip_allowed = is_skipped};
          },
          {.strategy = test::sharded()});
  EXPECT_EQ(history["loss"].back(), static_cast<double>(ranks()));
}

TEST(FitOnRanksTest, OtherMetricsAreAnErrorOnAllRanks) {
  NEEDS_TWO_RANKS();
  ModelRun run(test::sharded());
  FitOptions options{.model = run.model, .metrics = {RMSE()}};
  if (is_last()) {
    options.metrics.push_back(Mean());
  }
  EXPECT_VALUE_ERROR(
      fit(batches_of(rank(), 10), run.train_step(), options),
      "has other metrics in fit()");
}

TEST(FitOnRanksTest, TheLossesOfATaskAddUp) {
  ModelRun run(test::sharded());
  const auto loss_of = [&](const ClickBatch& batch) {
    StepResult result = run.loss_of()(batch);
    return StepResult{
        .tasks = {
            {.name = "click",
             .loss = result.loss,
             .predictions = result.predictions,
             .labels = result.labels}}};
  };
  const auto equal_sizes = click_batches(kSteps, 10);
  const History history =
      fit(equal_sizes,
          make_train_step(run.optimizer, loss_of),
          {.model = run.model,
           .metrics = {TaskLoss("click"), TaskMetric("click", AUC())}});
  EXPECT_NEAR(history["click_loss"][0], history["loss"][0], 1e-9);
  EXPECT_GT(history["click_auc"][0], 0.0);
}

TEST(FitOnRanksTest, AnEpochThatIsResumedInItsMiddleLogsTheSame) {
  const SharedFolder folder;
  const auto train = [&](const std::string& name, int64_t stop_after) {
    ModelRun run(test::sharded());
    const auto hooks = stopping_after(stop_after, "enough");
    return fit(
        batches_of(rank(), 10),
        run.train_step(),
        {.epochs = 2,
         .model = run.model,
         .metrics = {AUC(), RMSE(), Largest()},
         .callbacks = {hooks},
         .checkpoint = std::make_shared<Checkpoint>(
             folder / name, run.model.ptr(), run.optimizer)});
  };
  const History whole = train("whole", 0);
  train("parts", 4);
  const History resumed = train("parts", 0);
  EXPECT_EQ(to_json(resumed).dump(), to_json(whole).dump());
}

}  // namespace tessera::training::fit_on_ranks_test
