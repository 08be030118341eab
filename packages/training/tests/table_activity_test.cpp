// SPDX-License-Identifier: Apache-2.0
// The movement of rows: TableActivity, and the warning of fit().
#include <tessera/layers/embedding_engine_module.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/training/learning_rate_log.h>
#include <tessera/training/table_activity.h>
#include <torch/serialize/archive.h>

#include "packages/training/tests/training_fixture.h"
#include "tests/layers/layer_test_util.h"

#include <c10/core/CPUAllocator.h>

namespace tessera::training::table_activity_test {

constexpr int64_t kRows = 200;
constexpr int64_t kBatch = 1024;
const initializers::TruncatedNormal kUsual{.stddev = 0.5};

TPUEmbedding make_layer(
    const optim::OptimizerSpec& optimizer,
    Initializer initializer = kUsual,
    int64_t rows = kRows) {
  const auto table = make_table(
      {.name = "users",
       .vocabulary_size = rows,
       .dim = 4,
       .initializer = std::move(initializer)});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features = {{"user", FeatureConfig{.table = table}}},
      .optimizer = optimizer});
}

struct RunOptions {
  int64_t steps = 120;
  int64_t ids = kRows;  // ids are drawn from [0, ids)
  // Of the loss. The default gives the gradients of a batch of 100,000.
  double factor = 0.01;
  bool warning = true;
  Callbacks callbacks = {};
};

// Trains with a mean loss, and returns the warnings.
Texts train(TPUEmbedding layer, RunOptions options = {}) {
  at::manual_seed(1);
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  Warnings warnings;
  fit(
      [&](int64_t) {
        return std::vector<at::Tensor>(
            options.steps, at::randint(options.ids, {kBatch}, at::kLong));
      },
      make_train_step(
          optimizer,
          [&](const at::Tensor& ids) {
            const auto rows = layer->forward({{"user", ids}})["user"];
            return (rows - 1.0).square().mean() * options.factor;
          }),
      {.model = layer.ptr(),
       .callbacks = options.callbacks,
       .movement_warning = options.warning});
  return warnings.texts;
}

void expect_none(TPUEmbedding layer, RunOptions options = {}) {
  EXPECT_EQ(train(std::move(layer), std::move(options)), Texts{});
}

const optim::Adagrad kDefaultStart{.learning_rate = 0.01};
const optim::SGD kTiny{.learning_rate = 1e-9};  // too small for float32

// Expects one warning, with these parts and those of every warning.
void expect_one(const Texts& texts, std::vector<const char*> parts) {
  ASSERT_EQ(texts.size(), 1);
  for (const char* part :
       {"mean loss over a batch",
        "larger learning rate",
        "sum of the loss",
        "docs/optimizers.md",
        "FitOptions::movement_warning"}) {
    parts.push_back(part);
  }
  for (const char* part : parts) {
    EXPECT_CONTAINS(texts[0], part);
  }
}

TEST(MovementWarningTest, AdagradsDefaultStartUnderAMeanLossWarnsOnce) {
  expect_one(
      train(make_layer(kDefaultStart), {.steps = 400}),
      {"[fit] the rows of table 'users' hardly move: after 100 updates",
       "initial_accumulator_value",
       "1e-6"});
}

TEST(MovementWarningTest, TheTablesOfAnEngineModuleAreWatchedToo) {
  EmbeddingEngineModule engine(EmbeddingEngineOptions{
      .features = make_layer(kDefaultStart)->options().features,
      .optimizer = kDefaultStart});
  const std::vector<at::Tensor> batches(
      120, at::arange(kBatch, at::kLong).remainder(kRows));
  Warnings warnings;
  fit(batches,
      [&](const at::Tensor& ids) {
        engine->enqueue({{"user", ids}});
        const at::Tensor loss =
            (engine->dequeue()["user"] - 1.0).square().mean() * 0.01;
        loss.backward();
        engine->apply_gradients();
        return StepResult{.loss = loss.detach(), .examples = kBatch};
      },
      {.model = engine.ptr()});
  expect_one(warnings.texts, {"the rows of table 'users' hardly move"});
}

TEST(MovementWarningTest, WhatTheWarningAdvisesEndsIt) {
  optim::Adagrad small_start = kDefaultStart;
  small_start.initial_accumulator_value = 1e-6;
  expect_none(make_layer(small_start));
  optim::Adagrad fast = kDefaultStart;
  fast.learning_rate = 10.0;
  expect_none(make_layer(fast));
  const double all = kBatch * 4;
  expect_none(make_layer(kDefaultStart), {.factor = all});
  expect_none(make_layer(optim::Adam{.learning_rate = 0.001}));
}

TEST(MovementWarningTest, OtherOptimizersWarnOnlyOfTinySteps) {
  expect_none(make_layer(optim::SGD{.learning_rate = 0.1}));
  expect_one(
      train(make_layer(optim::SGD{.learning_rate = 1e-3})),
      {"Use Adam or Adagrad"});
}

TEST(MovementWarningTest, RowsThatRestForAReasonGiveNoWarning) {
  expect_none(make_layer(kDefaultStart), {.steps = 99});
  // Few touched rows.
  expect_none(make_layer(kDefaultStart), {.ids = 15, .factor = 0.001});
  EXPECT_FALSE(
      train(make_layer(kDefaultStart), {.ids = 16, .factor = 0.001}).empty());
  expect_none(make_layer(kDefaultStart), {.warning = false});
  optim::Adagrad still = kDefaultStart;
  still.learning_rate = 0.0;
  expect_none(make_layer(still));
  still.learning_rate = [] { return 0.01; };
  expect_none(make_layer(still));
  auto frozen = make_layer(kDefaultStart);
  frozen->virtual_variable().requires_grad_(false);
  const auto before = tables_of(frozen);
  torch::optim::SGD optimizer(frozen->parameters(), 0.1);
  fit(std::vector<at::Tensor>(120, at::full({4}, 1, at::kLong)),
      [&](const at::Tensor& ids) {
        return frozen->forward({{"user", ids}})["user"].sum();
      },
      {.model = frozen.ptr()});
  expect_same_tables(frozen, before);
  // Rows that start at zero have no length to compare with.
  expect_none(make_layer(kDefaultStart, initializers::Zeros{}));
}

TEST(MovementWarningTest, RowsThatDoNotMoveAtAllWarnOnce) {
  for (const optim::OptimizerSpec& optimizer :
       {optim::OptimizerSpec(kTiny),
        optim::OptimizerSpec(optim::Adam{.learning_rate = 1e-12})}) {
    expect_one(
        train(make_layer(optimizer), {.steps = 300}),
        {"[fit] the rows of table 'users' do not move: after 100 updates",
         "none of ",
         "rows with a gradient has changed",
         "too small for float32"});
  }
  // Few rows of a large table.
  expect_one(
      train(make_layer(kTiny, kUsual, 1'000'000), {.ids = 100}),
      {"none of 100 rows"});
}

TEST(MovementWarningTest, SaysHowManyRowsHaveMoved) {
  const int64_t rows = 1'000'000;
  auto layer = make_layer(
      optim::Adagrad{.learning_rate = 1e-5}, initializers::Zeros{}, rows);
  at::Tensor values = at::full({rows, 4}, 0.5);
  values.narrow(0, 0, 10).fill_(1e-3);
  layer->update_embedding_table("users", values);
  expect_one(
      train(layer, {.ids = 40}),
      {"hardly move", "only 10 of 40 rows with a gradient have changed"});
}

// Fails to allocate this number of bytes.
class FailingAllocator : public at::Allocator {
 public:
  explicit FailingAllocator(size_t refused) : refused_(refused) {
    c10::SetCPUAllocator(this);
  }
  ~FailingAllocator() override {
    c10::SetCPUAllocator(usual_);
  }
  at::DataPtr allocate(size_t bytes) override {
    if (bytes == refused_) {
      ++failures;
      throw std::bad_alloc();
    }
    return usual_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  int64_t failures = 0;

 private:
  size_t refused_;
  at::Allocator* usual_ = c10::GetCPUAllocator();
};

TEST(MovementWarningTest, TrainsOnIfThereIsNoMemoryForCopies) {
  auto layer = make_layer(kTiny);
  FailingAllocator allocator(17 * 4 * sizeof(float));
  expect_none(layer, {.steps = 220, .ids = 17});
  EXPECT_GE(allocator.failures, 1);
}

TEST(MovementWarningTest, OnlyRowsWithAGradientHaveToMove) {
  expect_none(make_layer(kTiny), {.factor = 0.0});
  expect_none(make_layer(kTiny), {.ids = 15});
  expect_none(make_layer(optim::SGD{.learning_rate = 0.0}));
  expect_none(make_layer(kTiny), {.warning = false});
  expect_none(make_layer(kTiny), {.steps = 99});
  // Few rows of a large table, which move.
  const optim::SGD usual_steps{.learning_rate = 0.1};
  expect_none(make_layer(usual_steps, kUsual, 1'000'000), {.ids = 100});
  // A feature without ids.
  auto layer = make_layer(kTiny);
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  Warnings warnings;
  fit(std::vector<at::Tensor>(210, at::empty({0}, at::kLong)),
      make_train_step(
          optimizer,
          [&](const at::Tensor& ids) {
            const auto empty = ragged({{}, {}});
            return layer->forward({{"user", empty}})["user"].sum() + ids.sum();
          }),
      {.model = layer.ptr()});
  EXPECT_TRUE(warnings.texts.empty()) << warnings.texts[0];
}

TEST(MovementWarningTest, TablesThatWereTrainedBeforeGiveNoWarning) {
  auto layer = make_layer(kDefaultStart);
  expect_none(layer, {.steps = 1});
  expect_none(layer);
}

TEST(MovementWarningTest, WaitsForTheEndOfAWarmUp) {
  // The rate rises from 0. Then it falls slowly.
  const auto warm_up = [](double steps, double rate) {
    return optim::Warmup{
        .steps = steps,
        .then = optim::ExponentialDecay{
            .initial_learning_rate = rate, .decay_steps = 1e6}};
  };
  // 100 steps are the beginning of the warm-up. Adam's rows move fast at its end.
  expect_none(
      make_layer(optim::Adam{.learning_rate = warm_up(50'000, 1e-5)}),
      {.steps = 120});
  // After the warm-up, Adagrad's rows still hardly move.
  optim::Adagrad slow = kDefaultStart;
  slow.learning_rate = warm_up(300, 0.001);
  expect_one(train(make_layer(slow), {.steps = 210}), {"after 200 updates"});
}

TEST(MovementWarningTest, AScheduleMayEndSoonAfterTheComparison) {
  optim::Adagrad ending = kDefaultStart;
  ending.learning_rate = optim::CosineDecayRestarts{
      .initial_learning_rate = 0.01, .first_decay_steps = 100, .t_mul = 0.5};
  EXPECT_EQ(train(make_layer(ending)).size(), 1);
}

TEST(MovementWarningTest, TheSummaryNamesTheTable) {
  const std::string text =
      "table 'users': after 120 updates, the accumulators of its touched rows "
      "have grown by ";
  auto layer = make_layer(kDefaultStart);
  EXPECT_EQ(layer->summary().find(text), std::string::npos);
  train(layer);
  EXPECT_CONTAINS(layer->summary(), text);
  EXPECT_CONTAINS(layer->summary(), "from their start, 0.1.");
  optim::Adagrad small_start = kDefaultStart;
  small_start.initial_accumulator_value = 1e-6;
  for (const optim::OptimizerSpec& optimizer :
       {optim::OptimizerSpec(small_start),
        optim::OptimizerSpec(optim::Adam{})}) {
    auto other = make_layer(optimizer);
    train(other);
    EXPECT_EQ(other->summary().find("updates"), std::string::npos)
        << other->summary();
  }
  auto few = make_layer(kDefaultStart);
  train(few, {.ids = 15});
  EXPECT_EQ(few->summary().find("updates"), std::string::npos);
}

TEST(TableActivityTest, ComparesRowsWithTheStart) {
  const auto table = numbered_table("t", 4, 1);  // rows 0, 1, 2, 3
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {{"a", FeatureConfig{.table = table}}},
      .optimizer = optim::Adagrad{
          .learning_rate = 0.5, .initial_accumulator_value = 0.25}});
  const auto activity =
      std::make_shared<TableActivity>(std::vector<TPUEmbedding>{layer});
  EXPECT_TRUE(activity->measure().empty());
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  const History history =
      fit(std::vector<at::Tensor>{int64s({1, 2, 3})},
          make_train_step(
              optimizer,
              [&](const at::Tensor& ids) {
                return layer->forward({{"a", ids}})["a"].sum();
              }),
          {.epochs = 2, .callbacks = {activity}});
  // The gradients are 1, so the accumulators become 1.25 and 2.25.
  const double first = 0.5 / std::sqrt(1.25);
  const double second = first + 0.5 / std::sqrt(2.25);
  // The relative movements are those of the rows 1, 2 and 3.
  EXPECT_NEAR(history["moved_t"][0], first / 2.0, 1e-6);
  EXPECT_NEAR(history["moved_t"][1], second / 2.0, 1e-6);
  const TableMovement found = activity->measure().at(0);
  EXPECT_EQ(found.table, "t");
  EXPECT_EQ(found.sampled_rows, 4);
  EXPECT_EQ(found.touched_rows, 3);
  EXPECT_EQ(found.moved_rows, 3);
  EXPECT_NEAR(found.accumulator_growth, 8.0, 1e-5);
  EXPECT_EQ(
      to_string(activity->measure()),
      "table  touched  of rows  moved by  accumulators grew by\n"
      "t      3        4        39 %      800 %\n");
}

TEST(TableActivityTest, SamplesLargeTablesAndMeasuresOtherOptimizers) {
  auto layer = make_layer(optim::SGD{.learning_rate = 0.1});
  const auto activity = std::make_shared<TableActivity>(
      std::vector<TPUEmbedding>{layer}, /*max_rows=*/10);
  train(layer, {.steps = 2, .callbacks = {activity}});
  const TableMovement found = activity->measure().at(0);
  EXPECT_EQ(found.sampled_rows, 10);
  EXPECT_EQ(found.touched_rows, 10);
  EXPECT_GT(found.movement, 0.0);
  EXPECT_TRUE(std::isnan(found.accumulator_growth));
}

// Rows of keys that come later begin with their initial values, not with zeros.
TEST(TableActivityTest, NewKeysAreComparedWithTheirInitialValues) {
  const auto table = make_table(
      {.name = "t",
       .dim = 1,
       .initializer = initializers::Constant{.value = 2.0},
       .keys = DynamicKeys{.capacity = 100}});
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {{"a", FeatureConfig{.table = table}}},
      .optimizer = optim::Adagrad{
          .learning_rate = 0.5, .initial_accumulator_value = 0.25}});
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  const auto step = make_train_step(optimizer, [&](const at::Tensor& ids) {
    return layer->forward({{"a", ids}})["a"].sum();
  });
  // One step with the keys 100, 101, ... in each epoch.
  const auto keys = [](int64_t epoch) {
    return std::vector<at::Tensor>{int64s({100 + epoch})};
  };
  const auto activity =
      std::make_shared<TableActivity>(std::vector<TPUEmbedding>{layer});
  const History history =
      fit(keys, step, {.epochs = 3, .callbacks = {activity}});
  const double moved = 0.5 / std::sqrt(1.25) / 2.0;
  for (const double value : history["moved_t"]) {
    EXPECT_NEAR(value, moved, 1e-6);
  }
  const TableMovement found = activity->measure().at(0);
  EXPECT_EQ(found.sampled_rows, 3);
  EXPECT_EQ(found.touched_rows, 3);
  EXPECT_NEAR(found.accumulator_growth, 4.0, 1e-5);
  // Keys of an earlier training begin with the rows that they had. Of a table with more
  // keys than rows in the sample, only keys that are known to be new or old count.
  const auto later = std::make_shared<TableActivity>(
      std::vector<TPUEmbedding>{layer}, /*max_rows=*/2);
  fit(
      [&](int64_t) {
        return std::vector<at::Tensor>{int64s({100, 101, 102})};
      },
      step,
      {.callbacks = {later}});
  const double start = 2.0 - 0.5 / std::sqrt(1.25);
  const TableMovement after = later->measure().at(0);
  EXPECT_EQ(after.sampled_rows, 2);
  EXPECT_NEAR(after.movement, 0.5 / std::sqrt(2.25) / start, 1e-6);
}

TEST(TableActivityTest, MeasuresTheTablesOfEnginesAndLayers) {
  const auto table = numbered_table("t", 4, 1);  // rows 0, 1, 2, 3
  EmbeddingEngineModule engine(EmbeddingEngineOptions{
      .features = {{"a", FeatureConfig{.table = table}}},
      .optimizer = optim::SGD{.learning_rate = 0.5}});
  const auto layer = make_layer(optim::SGD{.learning_rate = 0.25});
  const TableModules both{engine, layer};
  const auto activity = std::make_shared<TableActivity>(both);
  const History history =
      fit(std::vector<at::Tensor>{int64s({1, 2, 3})},
          [&](const at::Tensor& ids) {
            engine->enqueue({{"a", ids}});
            const at::Tensor loss = engine->dequeue()["a"].sum();
            loss.backward();
            engine->apply_gradients();
            return StepResult{.loss = loss.detach(), .examples = 3};
          },
          {.callbacks = {activity, std::make_shared<LearningRateLog>(both)}});
  EXPECT_EQ(history["moved_t"][0], 0.25);  // the row 2 moves by 0.5
  EXPECT_EQ(history["learning_rate_t"][0], 0.5);
  EXPECT_EQ(history["learning_rate_users"][0], 0.25);
  EXPECT_EQ(activity->measure().at(0).moved_rows, 3);
  EXPECT_EQ(activity->measure().at(1).moved_rows, 0);
}

TEST(TableActivityTest, MayBeAValue) {
  auto layer = make_layer(optim::SGD{});
  expect_none(layer, {.steps = 2, .callbacks = {TableActivity({layer})}});
}

TEST(TableActivityTest, RefusesUnusableArguments) {
  auto layer = make_layer(optim::SGD{});
  EXPECT_VALUE_ERROR(
      TableActivity({TPUEmbedding(nullptr)}), "but got an empty one");
  EXPECT_VALUE_ERROR(
      TableActivity({layer, layer}), "two tables are named 'users'");
  EXPECT_VALUE_ERROR(
      TableActivity({layer}, /*max_rows=*/0), "max_rows must be >= 1");
}

TEST(TableActivityTest, RefusesADamagedState) {
  auto layer = make_layer(optim::SGD{});
  TableActivity activity({layer});
  const auto load = [&](const char* key, const c10::IValue& value) {
    torch::serialize::OutputArchive written;
    written.write(key, value);
    torch::serialize::InputArchive archive = reread(written);
    activity.load_state(archive);
  };
  const char* problem = "its state in the checkpoint is damaged";
  EXPECT_VALUE_ERROR(load("other", 1), problem);
  EXPECT_VALUE_ERROR(load("ranks", 1), problem);
}

}  // namespace tessera::training::table_activity_test
