// SPDX-License-Identifier: Apache-2.0
#include <tessera/embedding_engine.h>

#include "tests/feature_builders.h"
#include "tests/test_util.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {
namespace {

using std::chrono::milliseconds;
using test::floats;
using test::int64s;
using test::ragged;
using test::sparse;

constexpr milliseconds kSoon(50);

// 0, 1, 2, ... along the rows.
at::Tensor count_up(const at::Tensor& ids, int64_t dim) {
  return (ids.unsqueeze(1) * dim + at::arange(dim)).to(at::kFloat);
}

TablePtr counting_table(
    const std::string& name,
    int64_t vocabulary_size,
    int64_t dim,
    Combiner combiner) {
  return make_table(
      {.name = name,
       .vocabulary_size = vocabulary_size,
       .dim = dim,
       .combiner = combiner,
       .initializer = initializers::Callable("count_up", count_up)});
}

// The fixture of TensorFlow's tests: three features of two tables.
class EngineFixtureTest : public testing::Test {
 protected:
  TablePtr video_ = counting_table("video", 8, 4, Combiner::kSum);
  TablePtr user_ = counting_table("user", 16, 2, Combiner::kMean);

  Nest<FeatureConfig> configs(int64_t length = 0) const {
    const auto feature = [&](const TablePtr& table, int64_t of_table) {
      return FeatureConfig{
          .table = table, .max_sequence_length = length > 0 ? of_table : 0};
    };
    return {
        {"watched", feature(video_, 2)},
        {"favorited", feature(video_, 2)},
        {"friends", feature(user_, 3)}};
  }

  EmbeddingEngineOptions options() const {
    return {
        .features = configs(),
        .optimizer = optim::SGD{.learning_rate = 0.1},
        .timeout = kSoon};
  }

  static Features batch() {
    return {
        {"watched", sparse({{0}, {0, 1}}, 2)},
        {"favorited", ragged({{0, 1}, {1}})},
        {"friends", sparse({{3}, {0, 1, 2}}, 3)}};
  }

  static Nest<at::Tensor> ones_like(const Nest<at::Tensor>& activations) {
    std::vector<at::Tensor> ones;
    for (const at::Tensor& activation : activations.flatten()) {
      ones.push_back(at::ones_like(activation));
    }
    return activations.pack(ones);
  }
};

TEST_F(EngineFixtureTest, OneStepGivesUpstreamsTables) {
  EmbeddingEngine engine(options());
  engine.enqueue(batch());
  const Nest<at::Tensor> activations = engine.dequeue();
  test::expect_close(
      activations["watched"], floats({0, 1, 2, 3, 4, 6, 8, 10}).view({2, 4}));
  test::expect_close(
      activations["favorited"], floats({4, 6, 8, 10, 4, 5, 6, 7}).view({2, 4}));
  test::expect_close(activations["friends"], floats({6, 7, 2, 3}).view({2, 2}));
  for (const at::Tensor& activation : activations.flatten()) {
    EXPECT_FALSE(activation.requires_grad());
  }
  // The loss is the sum over features of mean_b sum_d act^2, so dL/dact = act.
  engine.apply_gradients(activations);
  EXPECT_EQ(engine.iterations(), 1);
  test::expect_close(
      engine.read_rows("video", 0, 2),
      floats({-.8F, -.3F, .2F, .7F, 2.8F, 3.3F, 3.8F, 4.3F}).view({2, 4}));
  test::expect_close(
      engine.read_rows("user", 0, 4),
      floats({-.0666667F, .9F, 1.933333F, 2.9F, 3.933333F, 4.9F, 5.4F, 6.3F})
          .view({4, 2}));
  test::expect_close(
      engine.read_rows("user", 4, 16), count_up(at::arange(4, 16), 2));
}

TEST_F(EngineFixtureTest, AMissingGradientIsAGradientOfZeros) {
  EmbeddingEngine engine(options());
  engine.enqueue(batch());
  const auto activations = engine.dequeue();
  engine.apply_gradients(
      {{"watched", at::Tensor()},
       {"favorited", at::Tensor()},
       {"friends", at::ones({2, 2})}});
  EXPECT_TRUE(
      at::equal(engine.read_rows("video", 0, 8), count_up(at::arange(8), 4)));
  const at::Tensor user = engine.read_rows("user", 0, 4);
  const float third = .1F / 3;
  test::expect_close(
      user,
      floats({-third,
              1 - third,
              2 - third,
              3 - third,
              4 - third,
              5 - third,
              5.9F,
              6.9F})
          .view({4, 2}));
}

TEST_F(EngineFixtureTest, SequencesAreTruncatedAndPaddedWithoutGradient) {
  auto with_sequences = options();
  with_sequences.features = configs(/*length=*/1);
  EmbeddingEngine engine(with_sequences);
  engine.enqueue(
      {{"watched", sparse({{0}, {0, 1}}, 2)},
       {"favorited", ragged({{0, 1, 5}, {1}})},
       {"friends", sparse({{3}, {0, 1, 2}}, 3)}});
  const auto activations = engine.dequeue();
  EXPECT_EQ(activations["watched"].sizes(), at::IntArrayRef({2, 2, 4}));
  EXPECT_EQ(activations["favorited"].sizes(), at::IntArrayRef({2, 2, 4}));
  EXPECT_EQ(activations["friends"].sizes(), at::IntArrayRef({2, 3, 2}));
  test::expect_close(activations["watched"][0][1], at::zeros({4}));
  engine.apply_gradients(ones_like(activations));
  test::expect_close(
      engine.read_rows("video", 0, 8),
      count_up(at::arange(8), 4) -
          floats({.3F, .3F, 0, 0, 0, 0, 0, 0}).unsqueeze(1));
  test::expect_close(
      engine.read_rows("user", 0, 4), count_up(at::arange(4), 2) - .1F);
}

TEST_F(EngineFixtureTest, NamesTieABatchTogether) {
  EmbeddingEngine engine(options());
  engine.enqueue(batch(), {}, {.name = "a"});
  engine.enqueue(batch(), {}, {.training = false, .name = "eval"});
  engine.enqueue(batch(), {}, {.name = "b"});
  const auto b = engine.dequeue("b");
  const auto a = engine.dequeue("a");
  engine.apply_gradients(b, "b");
  // Looked up in dequeue(): this one shows the update of b.
  const auto after_b = engine.dequeue("eval");
  test::expect_close(after_b["watched"][0], floats({-.8F, -.3F, .2F, .7F}));
  engine.apply_gradients(a, "a");
  EXPECT_EQ(engine.iterations(), 2);
  // Both names are free again.
  engine.enqueue(batch(), {}, {.name = "a"});
  engine.enqueue(batch(), {}, {.training = false, .name = "eval"});
}

TEST_F(EngineFixtureTest, WithoutNamesFirstInIsFirstOut) {
  EmbeddingEngine engine(options());
  for (int64_t id = 0; id < 3; ++id) {
    engine.enqueue(
        {{"watched", ragged({{id}})},
         {"favorited", ragged({{}})},
         {"friends", ragged({{}})}});
  }
  for (int64_t id = 0; id < 3; ++id) {
    EXPECT_EQ(engine.dequeue()["watched"][0][0].item<float>(), 4.0F * id);
  }
  for (int64_t id = 0; id < 3; ++id) {
    engine.apply_gradients(
        {{"watched", at::full({1, 4}, static_cast<float>(id))},
         {"favorited", at::zeros({1, 4})},
         {"friends", at::zeros({1, 2})}});
  }
  test::expect_close(
      engine.read_rows("video", 0, 3),
      count_up(at::arange(3), 4) - floats({0, .1F, .2F}).unsqueeze(1));
}

TEST_F(EngineFixtureTest, RefusesGradientsThatDoNotBelong) {
  EmbeddingEngine engine(options());
  const Nest<at::Tensor> gradients{
      {"watched", at::ones({2, 4})},
      {"favorited", at::ones({2, 4})},
      {"friends", at::ones({2, 2})}};
  EXPECT_TORCH_ERROR(
      engine.apply_gradients(gradients),
      "[apply_gradients] called on an unbuilt engine");
  EXPECT_TORCH_ERROR(engine.dequeue(), "[dequeue] called on an unbuilt engine");
  engine.enqueue(batch(), {}, {.training = false, .name = "eval"});
  engine.enqueue(batch(), {}, {.name = "train"});
  EXPECT_VALUE_ERROR(
      engine.apply_gradients(gradients, "eval"),
      "the batch 'eval' of replica 0 was enqueued with training = false");
  EXPECT_VALUE_ERROR(
      engine.apply_gradients(gradients, "train"), "has not been dequeued");
  EXPECT_VALUE_ERROR(
      engine.apply_gradients(gradients, "nobody"),
      "no training batch 'nobody' of replica 0 waits for gradients. In flight: "
      "'eval', 'train'.");
  EXPECT_VALUE_ERROR(
      engine.apply_gradients(gradients), "no training batch without a name");
  engine.dequeue("train");
  EXPECT_VALUE_ERROR(engine.dequeue("train"), "has been dequeued already");
  EXPECT_VALUE_ERROR(
      engine.apply_gradients({{"watched", at::ones({2, 4})}}, "train"),
      "missing entry 'favorited'");
  EXPECT_VALUE_ERROR(
      engine.apply_gradients(
          Nest<at::Tensor>::list(
              {at::ones({2, 4}), at::ones({2, 4}), at::ones({2, 2})}),
          "train"),
      "expected a map here, but got a list");
  EXPECT_VALUE_ERROR(
      engine.apply_gradients(
          {{"watched", at::ones({2, 4})},
           {"favorited", at::ones({3, 4})},
           {"friends", at::ones({2, 2})}},
          "train"),
      "[feature 'favorited'] the gradient must be a dense float32 cpu tensor of "
      "shape [2, 4]");
  EXPECT_EQ(engine.iterations(), 0);
  engine.apply_gradients(gradients, "train");
  EXPECT_VALUE_ERROR(
      engine.apply_gradients(gradients, "train"), "no training batch 'train'");
  EXPECT_EQ(engine.iterations(), 1);
}

TEST_F(EngineFixtureTest, RefusesBatchesThatDoNotFit) {
  EmbeddingEngine engine(options());
  EXPECT_VALUE_ERROR(
      engine.enqueue({{"watched", ragged({{0}})}}),
      "missing entry 'favorited'");
  EXPECT_VALUE_ERROR(
      engine.enqueue(
          {{"watched", int64s({0, 1})},
           {"favorited", ragged({{0, 1}, {1}})},
           {"friends", ragged({{3}, {0}})}},
          {{"watched", Feature(floats({1, 1}))},
           {"favorited", std::nullopt},
           {"friends", std::nullopt}}),
      "[feature 'watched'] weights are given, but the feature is dense");
  EXPECT_TYPE_ERROR(
      engine.enqueue(
          batch(),
          {{"watched",
            Feature(RaggedFeature{floats({1, 1, 1}), int64s({0, 1, 3})})},
           {"favorited", std::nullopt},
           {"friends", std::nullopt}}),
      "weights must be sparse like the feature");
  EXPECT_INDEX_ERROR(
      engine.enqueue(batch(), {}, {.replica = 1}),
      "[enqueue] replica must be in [0, 1), but got 1");
  EXPECT_INDEX_ERROR(
      engine.enqueue(
          {{"watched", ragged({{8}})},
           {"favorited", ragged({{0}})},
           {"friends", ragged({{0}})}}),
      "[feature 'watched']");
  engine.enqueue(batch(), {}, {.name = "a"});
  EXPECT_VALUE_ERROR(
      engine.enqueue(batch(), {}, {.name = "a"}),
      "[enqueue] the batch 'a' of replica 0 is in flight already");
}

TEST_F(EngineFixtureTest, WeightsScaleAndMissingOnesDoNot) {
  EmbeddingEngine engine(options());
  const at::Tensor half = floats({.5F, .5F, .5F});
  engine.enqueue(
      batch(),
      {{"watched", Feature(half)},
       {"favorited", std::nullopt},
       {"friends", Feature(floats({.5F, .5F, .5F, .5F}))}});
  const auto activations = engine.dequeue();
  test::expect_close(activations["watched"][1], floats({2, 3, 4, 5}));
  test::expect_close(activations["favorited"][0], floats({4, 6, 8, 10}));
  test::expect_close(activations["friends"][1], floats({2, 3}));
}

TEST_F(EngineFixtureTest, AFullQueueBlocksUntilABatchIsDequeued) {
  auto shallow = options();
  shallow.queue_depth = 2;
  EmbeddingEngine engine(shallow);
  engine.enqueue(batch(), {}, {.name = "a"});
  engine.enqueue(batch(), {}, {.name = "b"});
  EXPECT_TORCH_ERROR(
      engine.enqueue(batch(), {}, {.name = "c"}),
      "[enqueue] the queue is full: queue_depth = 2 batches wait to be dequeued. "
      "In flight: 'a', 'b'.");
  shallow.timeout = std::chrono::minutes(5);
  EmbeddingEngine patient(shallow);
  patient.enqueue(batch());
  patient.enqueue(batch());
  std::atomic<bool> is_in = false;
  std::thread producer([&] {
    patient.enqueue(batch());
    is_in = true;
  });
  std::this_thread::sleep_for(kSoon);
  EXPECT_FALSE(is_in);
  patient.dequeue();
  producer.join();
  EXPECT_TRUE(is_in);
}

TEST_F(EngineFixtureTest, AnEmptyQueueBlocksUntilABatchIsEnqueued) {
  EmbeddingEngine impatient(options());
  impatient.build();
  EXPECT_TORCH_ERROR(
      impatient.dequeue("late"),
      "[dequeue] the batch 'late' of replica 0 was not enqueued. In flight: "
      "(none)");
  auto waits = options();
  waits.timeout = std::chrono::minutes(5);
  EmbeddingEngine engine(waits);
  engine.build();
  std::thread producer([&] {
    std::this_thread::sleep_for(kSoon);
    engine.enqueue(batch(), {}, {.name = "late"});
  });
  EXPECT_EQ(engine.dequeue("late")["watched"].size(0), 2);
  producer.join();
}

TEST_F(EngineFixtureTest, ShutdownWakesWhatWaits) {
  auto waits = options();
  waits.timeout = std::chrono::hours(10);
  auto engine = std::make_unique<EmbeddingEngine>(waits);
  engine->build();
  std::atomic<int> raised = 0;
  const auto raises = [&](const std::string& name) {
    EXPECT_TORCH_ERROR(engine->dequeue(name), "has been shut down");
    ++raised;
  };
  std::thread first(raises, "a");
  std::thread second(raises, "b");
  std::this_thread::sleep_for(kSoon);
  engine->enqueue(batch());
  engine->shutdown();
  first.join();
  second.join();
  EXPECT_EQ(raised, 2);
  EXPECT_TORCH_ERROR(engine->enqueue(batch()), "has been shut down");
  EXPECT_TORCH_ERROR(engine->dequeue(), "has been shut down");
}

TEST_F(EngineFixtureTest, EndsWithLookupsAndGradientsInFlight) {
  const auto wide = make_table(
      {.name = "wide",
       .vocabulary_size = 20000,
       .dim = 64,
       .initializer = initializers::Zeros{}});
  for (int round = 0; round < 20; ++round) {
    EmbeddingEngine engine(
        {.features = {{"f", FeatureConfig{.table = wide}}},
         .optimizer = optim::SGD{},
         .pipelining = Pipelining::kOn,
         .replicas = 2});
    const Features features{{"f", at::arange(20000, at::kLong)}};
    for (const char* name : {"a", "b"}) {
      for (const int64_t replica : {0, 1}) {
        engine.enqueue(features, {}, {.name = name, .replica = replica});
      }
    }
    if (round % 2 == 0) {
      engine.apply_gradients(engine.dequeue("a", 0), "a", 0);
    }
  }
}

TEST_F(EngineFixtureTest, ABatchCanBeDropped) {
  EmbeddingEngine engine(options());
  engine.enqueue(batch(), {}, {.name = "a"});
  const auto activations = engine.dequeue("a");
  engine.drop("a");
  EXPECT_VALUE_ERROR(
      engine.apply_gradients(activations, "a"), "no training batch 'a'");
  EXPECT_VALUE_ERROR(engine.drop("a"), "[drop] no batch 'a' is in flight");
  engine.enqueue(batch(), {}, {.name = "a"});
  EXPECT_EQ(engine.iterations(), 0);
}

TEST_F(EngineFixtureTest, AFailingLearningRateChangesNothingAndCanBeRepeated) {
  auto failing = options();
  bool fails = true;
  EmbeddingEngine* self = nullptr;
  failing.optimizer = optim::SGD{
      .learning_rate = optim::LearningRate("rate", [&] {
        TORCH_CHECK(!fails, "no rate today");
        EXPECT_EQ(self->iterations(), 0);
        EXPECT_TORCH_ERROR(self->drop("a"), "called within its own update");
        EXPECT_TORCH_ERROR(self->shutdown(), "called within its own update");
        return 0.1;
      })};
  EmbeddingEngine engine(failing);
  self = &engine;
  engine.enqueue(batch(), {}, {.name = "a"});
  const auto activations = engine.dequeue("a");
  EXPECT_TORCH_ERROR(engine.apply_gradients(activations, "a"), "no rate today");
  EXPECT_TRUE(
      at::equal(engine.read_rows("video", 0, 8), count_up(at::arange(8), 4)));
  fails = false;
  engine.apply_gradients(activations, "a");
  test::expect_close(
      engine.read_rows("video", 0, 1)[0], floats({-.8F, -.3F, .2F, .7F}));
}

// --- replicas ----------------------------------------------------------------

Features slice(const std::vector<std::vector<int64_t>>& rows) {
  return {
      {"watched", ragged(rows)},
      {"favorited", ragged(rows)},
      {"friends", ragged(rows)}};
}

TEST_F(EngineFixtureTest, ReplicasOfDifferentLengthMakeOneUpdate) {
  const std::vector<std::vector<int64_t>> first{{0}, {0, 1}, {7, 7}};
  const std::vector<std::vector<int64_t>> second{{1, 0}};
  std::vector<std::vector<int64_t>> both = first;
  both.insert(both.end(), second.begin(), second.end());
  auto adagrad = options();
  adagrad.optimizer = optim::Adagrad{.learning_rate = 0.1};
  EmbeddingEngine whole(adagrad);
  whole.enqueue(slice(both));
  whole.apply_gradients(whole.dequeue());

  adagrad.replicas = 2;
  for (const bool second_comes_first : {false, true}) {
    EmbeddingEngine engine(adagrad);
    engine.enqueue(slice(first), {}, {.name = "s", .replica = 0});
    engine.enqueue(slice(second), {}, {.name = "s", .replica = 1});
    const auto a = engine.dequeue("s", 0);
    const auto b = engine.dequeue("s", 1);
    EXPECT_EQ(a["watched"].size(0), 3);
    EXPECT_EQ(b["watched"].size(0), 1);
    if (second_comes_first) {
      engine.apply_gradients(b, "s", 1);
      EXPECT_EQ(engine.iterations(), 0);
      engine.apply_gradients(a, "s", 0);
    } else {
      engine.apply_gradients(a, "s", 0);
      EXPECT_EQ(engine.iterations(), 0);
      engine.apply_gradients(b, "s", 1);
    }
    EXPECT_EQ(engine.iterations(), 1);
    for (const auto& [name, rows] :
         {std::pair{"video", 8}, std::pair{"user", 16}}) {
      const at::Tensor expected = whole.read_rows(name, 0, rows);
      test::expect_close(engine.read_rows(name, 0, rows), expected);
    }
  }
}

TEST_F(EngineFixtureTest, OrderOfArrivalDoesNotShowInABit) {
  auto two = options();
  two.replicas = 3;
  std::vector<at::Tensor> tables;
  for (const std::vector<int64_t>& order :
       {std::vector<int64_t>{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    EmbeddingEngine engine(two);
    for (const int64_t replica : order) {
      engine.enqueue(slice({{0, 1}, {2}}), {}, {.replica = replica});
    }
    for (const int64_t replica : order) {
      engine.dequeue("", replica);
    }
    for (const int64_t replica : order) {
      const at::Tensor gradient = at::arange(8).view({2, 4}) / 3.0F;
      engine.apply_gradients(
          {{"watched", gradient * 0.1F * static_cast<float>(replica + 1)},
           {"favorited", gradient * 1e3F},
           {"friends", at::ones({2, 2})}},
          "",
          replica);
    }
    tables.push_back(engine.read_rows("video", 0, 8));
  }
  EXPECT_TRUE(at::equal(tables[0], tables[1]));
  EXPECT_TRUE(at::equal(tables[0], tables[2]));
}

TEST_F(EngineFixtureTest, ReplicasInThreadsWaitForOneAnother) {
  auto two = options();
  two.replicas = 2;
  two.timeout = std::chrono::minutes(5);
  EmbeddingEngine engine(two);
  engine.build();
  constexpr int kSteps = 50;
  const auto train = [&](int64_t replica) {
    for (int step = 0; step < kSteps; ++step) {
      const std::string name = "step " + std::to_string(step);
      engine.enqueue(slice({{0}}), {}, {.name = name, .replica = replica});
      const auto activations = engine.dequeue(name, replica);
      // All updates before, of both replicas, and no other.
      const float expected = 0.0F - 0.4F * static_cast<float>(step);
      EXPECT_NEAR(activations["watched"][0][0].item<float>(), expected, 1e-3)
          << "step " << step << ", replica " << replica;
      engine.apply_gradients(ones_like(activations), name, replica);
    }
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  EXPECT_EQ(engine.iterations(), kSteps);
}

TEST_F(EngineFixtureTest, ReplicasThatDisagreeAreAnErrorAndNoHang) {
  auto two = options();
  two.replicas = 2;
  EmbeddingEngine engine(two);
  engine.enqueue(batch(), {}, {.name = "s", .replica = 0});
  EXPECT_VALUE_ERROR(
      engine.enqueue(
          batch(), {}, {.training = false, .name = "s", .replica = 1}),
      "[enqueue] replicas disagree on the batch 's': it was enqueued with training "
      "= true, but replica 1 enqueues it with training = false");
  EXPECT_VALUE_ERROR(
      engine.enqueue(batch(), {}, {.name = "s", .replica = 0}),
      "is in flight already");
  // Replica 1 never arrives.
  EXPECT_TORCH_ERROR(
      engine.dequeue("s", 1),
      "[dequeue] the batch 's' of replica 1 was not enqueued. In flight: 's'");
  engine.apply_gradients(engine.dequeue("s", 0), "s", 0);
  engine.enqueue(batch(), {}, {.name = "t", .replica = 0});
  EXPECT_TORCH_ERROR(
      engine.dequeue("t", 0),
      "[dequeue] the batch 't' of replica 0 waits for the update of the batch "
      "'s', which has no gradients from replica 1 yet");
  engine.drop("s");
  EXPECT_EQ(engine.dequeue("t", 0)["watched"].size(0), 2);
}

TEST_F(EngineFixtureTest, AnEvaluationBatchLastsUntilAllReplicasHaveIt) {
  auto two = options();
  two.replicas = 2;
  EmbeddingEngine engine(two);
  // Replica 0 runs ahead.
  engine.enqueue(batch(), {}, {.training = false, .replica = 0});
  engine.dequeue("", 0);
  engine.enqueue(batch(), {}, {.replica = 0});
  engine.enqueue(batch(), {}, {.training = false, .replica = 1});
  engine.dequeue("", 1);
  engine.enqueue(batch(), {}, {.replica = 1});
  engine.apply_gradients(engine.dequeue("", 0), "", 0);
  engine.apply_gradients(engine.dequeue("", 1), "", 1);
  EXPECT_EQ(engine.iterations(), 1);
}

TEST_F(EngineFixtureTest, ANameUsedAgainWaitsForTheOtherReplicas) {
  auto two = options();
  two.replicas = 2;
  two.timeout = std::chrono::minutes(5);
  EmbeddingEngine engine(two);
  engine.build();
  constexpr int kSteps = 30;
  const auto train = [&](int64_t replica) {
    for (int step = 0; step < kSteps; ++step) {
      engine.enqueue(slice({{0}}), {}, {.name = "train", .replica = replica});
      engine.apply_gradients(
          engine.dequeue("train", replica), "train", replica);
    }
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  EXPECT_EQ(engine.iterations(), kSteps);

  two.timeout = kSoon;
  EmbeddingEngine alone(two);
  alone.enqueue(batch(), {}, {.name = "train"});
  alone.apply_gradients(alone.dequeue("train"), "train");
  EXPECT_TORCH_ERROR(
      alone.enqueue(batch(), {}, {.name = "train"}),
      "[enqueue] the batch 'train' of replica 0 waits for the one of the same "
      "name before it, which replica 1 has not finished");
}

TEST_F(EngineFixtureTest, GradientsAreCopiedUntilAllHaveCome) {
  auto two = options();
  two.replicas = 2;
  EmbeddingEngine engine(two);
  for (const int64_t replica : {0, 1}) {
    engine.enqueue(slice({{0}}), {}, {.replica = replica});
    engine.dequeue("", replica);
  }
  const at::Tensor gradient = at::ones({1, 4});
  const Nest<at::Tensor> gradients{
      {"watched", gradient},
      {"favorited", at::zeros({1, 4})},
      {"friends", at::zeros({1, 2})}};
  engine.apply_gradients(gradients, "", 0);
  gradient.fill_(100);
  gradient.fill_(1);
  gradient.zero_();
  engine.apply_gradients(gradients, "", 1);
  test::expect_close(
      engine.read_rows("video", 0, 1)[0], floats({-.1F, .9F, 1.9F, 2.9F}));
}

TEST_F(EngineFixtureTest, ABatchWithoutANameIsDroppedOnlyWhole) {
  auto two = options();
  two.replicas = 2;
  EmbeddingEngine engine(two);
  engine.enqueue(batch(), {}, {.replica = 0});
  EXPECT_VALUE_ERROR(
      engine.drop(), "not all replicas have enqueued the oldest batch");
  engine.enqueue(batch(), {}, {.replica = 1});
  engine.drop();
  EXPECT_VALUE_ERROR(engine.drop(), "no batch without a name is in flight");
}

TEST_F(EngineFixtureTest, DroppingWakesWhoWaitsForIt) {
  auto waits = options();
  waits.replicas = 2;
  waits.timeout = std::chrono::minutes(5);
  EmbeddingEngine engine(waits);
  engine.enqueue(batch(), {}, {.name = "half"});
  engine.apply_gradients(engine.dequeue("half"), "half");
  engine.enqueue(batch(), {}, {.name = "next"});
  std::thread waiting([&] {
    EXPECT_TORCH_ERROR(
        engine.dequeue("next"),
        "[dequeue] the batch 'next' was dropped while dequeue() waited for it");
  });
  std::this_thread::sleep_for(kSoon);
  engine.drop("next");
  waiting.join();
}

TEST_F(EngineFixtureTest, ARefusedBatchIsNotCounted) {
  auto zero = options();
  zero.queue_depth = 1;
  zero.features =
      FeatureConfig{.table = user_, .out_of_range = OutOfRange::kZero};
  EmbeddingEngine engine(zero);
  engine.enqueue(int64s({99, 1}));
  EXPECT_TORCH_ERROR(engine.enqueue(int64s({99, 1})), "the queue is full");
  EXPECT_EQ(engine.out_of_range_count(), 1);
}

// --- pipelining --------------------------------------------------------------

// One feature of one row, which each update lowers by 1.
class PipeliningTest : public testing::Test {
 protected:
  static EmbeddingEngineOptions options() {
    return {
        .features =
            {{"f",
              FeatureConfig{
                  .table = make_table(
                      {.name = "t",
                       .vocabulary_size = 1,
                       .dim = 1,
                       .initializer = initializers::Zeros{}})}}},
        .optimizer = optim::SGD{.learning_rate = 1.0},
        .pipelining = Pipelining::kOn,
        .lookup_threads = 1,
        .timeout = std::chrono::minutes(5)};
  }

  static Features ids() {
    return {{"f", int64s({0})}};
  }

  static void enqueue(
      EmbeddingEngine& engine,
      const std::string& name,
      bool training = true) {
    engine.enqueue(ids(), {}, {.training = training, .name = name});
  }

  static float dequeue(EmbeddingEngine& engine, const std::string& name) {
    return engine.dequeue(name)["f"].item<float>();
  }

  static void apply(EmbeddingEngine& engine, const std::string& name) {
    engine.apply_gradients({{"f", at::ones({1, 1})}}, name);
  }
};

TEST_F(PipeliningTest, ActivationsAreOneStepStale) {
  EmbeddingEngine engine(options());
  constexpr int kSteps = 20;
  enqueue(engine, "0");
  for (int step = 0; step < kSteps; ++step) {
    const std::string name = std::to_string(step);
    enqueue(engine, std::to_string(step + 1));
    EXPECT_EQ(dequeue(engine, name), -std::max(step - 1, 0)) << step;
    apply(engine, name);
    EXPECT_EQ(engine.read_rows("t", 0, 1).item<float>(), -(step + 1));
  }
}

TEST_F(PipeliningTest, NeverMoreThanOneStep) {
  EmbeddingEngine engine(options());
  for (const char* name : {"0", "1", "2", "3"}) {
    enqueue(engine, name);
  }
  EXPECT_EQ(dequeue(engine, "0"), 0);
  EXPECT_EQ(dequeue(engine, "1"), 0);
  apply(engine, "0");
  EXPECT_EQ(dequeue(engine, "2"), -1);
  apply(engine, "1");
  EXPECT_EQ(dequeue(engine, "3"), -2);
  apply(engine, "2");
  apply(engine, "3");
  EXPECT_EQ(engine.iterations(), 4);
}

TEST_F(PipeliningTest, EvaluationSeesEveryUpdate) {
  EmbeddingEngine engine(options());
  enqueue(engine, "0");
  enqueue(engine, "1");
  enqueue(engine, "eval", /*training=*/false);
  dequeue(engine, "0");
  apply(engine, "0");
  EXPECT_EQ(dequeue(engine, "eval"), -1);
  EXPECT_EQ(dequeue(engine, "1"), 0);
}

TEST_F(PipeliningTest, GradientsThatNeverComeHoldUpOnlyUntilDropped) {
  auto soon = options();
  soon.timeout = kSoon;
  EmbeddingEngine engine(soon);
  for (const char* name : {"0", "1", "2"}) {
    enqueue(engine, name);
  }
  dequeue(engine, "0");
  dequeue(engine, "1");
  EXPECT_TORCH_ERROR(
      engine.dequeue("2"),
      "the batch '2' of replica 0 waits for the update of the batch '0', which "
      "has no gradients from replica 0 yet");
  engine.drop("0");
  EXPECT_EQ(dequeue(engine, "2"), 0);
  apply(engine, "1");
  apply(engine, "2");
  EXPECT_EQ(engine.iterations(), 2);
}

TEST_F(PipeliningTest, ReplicasSeeTheSameTables) {
  auto two = options();
  two.replicas = 2;
  EmbeddingEngine engine(two);
  engine.build();
  constexpr int kSteps = 50;
  std::vector<std::vector<float>> seen(2);
  const auto train = [&](int64_t replica) {
    for (int step = 0; step < kSteps; ++step) {
      engine.enqueue(ids(), {}, {.replica = replica});
      const auto activations = engine.dequeue("", replica);
      seen[replica].push_back(activations["f"].item<float>());
      engine.apply_gradients({{"f", at::full({1, 1}, 0.5F)}}, "", replica);
    }
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  // Enqueued after the gradients of the step before: none of them is stale.
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_EQ(seen[0][step], -step);
    EXPECT_EQ(seen[1][step], -step);
  }
}

TEST_F(PipeliningTest, SeveralConsumersTakeOneBatchEach) {
  EmbeddingEngine engine(options());
  for (int i = 0; i < 4; ++i) {
    engine.enqueue(ids());
  }
  engine.dequeue();
  engine.dequeue();
  // Both wait for updates.
  std::thread first([&] { engine.dequeue(); });
  std::thread second([&] { engine.dequeue(); });
  engine.apply_gradients({{"f", at::ones({1, 1})}});
  engine.apply_gradients({{"f", at::ones({1, 1})}});
  first.join();
  second.join();
}

TEST_F(PipeliningTest, ATableIsReplacedBetweenLookups) {
  EmbeddingEngine engine(options());
  enqueue(engine, "0");
  engine.update_embedding_table("t", at::full({1, 1}, 5.0F));
  enqueue(engine, "1");
  EXPECT_EQ(dequeue(engine, "0"), 0);
  EXPECT_EQ(dequeue(engine, "1"), 5);
}

TEST_F(PipeliningTest, AProducerAndATrainerLoseNothing) {
  auto two_deep = options();
  two_deep.queue_depth = 2;
  EmbeddingEngine engine(two_deep);
  engine.build();
  constexpr int kSteps = 200;
  std::thread producer([&] {
    for (int step = 0; step < kSteps; ++step) {
      engine.enqueue(ids());
    }
  });
  for (int step = 0; step < kSteps; ++step) {
    const float seen = engine.dequeue()["f"].item<float>();
    EXPECT_GE(seen, -step);
    EXPECT_LE(seen, -std::max(step - 1, 0));
    engine.apply_gradients({{"f", at::ones({1, 1})}});
  }
  producer.join();
  EXPECT_EQ(engine.read_rows("t", 0, 1).item<float>(), -kSteps);
}

// --- lookups for serving -----------------------------------------------------

TEST_F(EngineFixtureTest, LooksUpAnySubsetForServing) {
  EmbeddingEngine engine(options());
  const auto some = engine.embedding_lookup({{"friends", ragged({{3}, {}})}});
  EXPECT_EQ(some.size(), 1);
  test::expect_close(some["friends"], floats({6, 7, 0, 0}).view({2, 2}));
  EXPECT_VALUE_ERROR(
      engine.embedding_lookup({{"nobody", ragged({{3}})}}),
      "[features] 'nobody' is none of the feature configs. Known: watched, "
      "favorited, friends");
  // No batch has been enqueued: nothing is fixed yet.
  engine.enqueue(batch());
}

TEST_F(EngineFixtureTest, LooksUpByAnotherConfigOverItsTables) {
  EmbeddingEngine engine(options());
  const Nest<FeatureConfig> serving{
      {"any", FeatureConfig{.table = user_, .max_sequence_length = 2}}};
  const auto activations =
      engine.embedding_lookup({{"any", ragged({{3, 1, 2}})}}, {}, serving);
  test::expect_close(activations["any"], floats({6, 7, 2, 3}).view({1, 2, 2}));
  const auto foreign = counting_table("user", 16, 2, Combiner::kMean);
  EXPECT_VALUE_ERROR(
      engine.embedding_lookup(
          {{"any", ragged({{3}})}},
          {},
          {{"any", FeatureConfig{.table = foreign}}}),
      "[feature 'any'] its table 'user' is none of the tables given");
}

// --- options, tables, configuration ------------------------------------------

TEST_F(EngineFixtureTest, RefusesUnusableOptions) {
  const auto with = [&](auto change) {
    auto changed = options();
    change(changed);
    EmbeddingEngine engine(changed);
  };
  EXPECT_VALUE_ERROR(
      with([](auto& options) { options.replicas = 0; }),
      "replicas must be >= 1, but got 0");
  EXPECT_VALUE_ERROR(
      with([](auto& options) { options.queue_depth = 0; }),
      "queue_depth must be >= 1");
  EXPECT_VALUE_ERROR(
      with([](auto& options) { options.lookup_threads = -1; }),
      "lookup_threads must be in");
  EXPECT_VALUE_ERROR(
      with([](auto& options) { options.timeout = milliseconds(0); }),
      "timeout must be > 0 ms");
  EXPECT_VALUE_ERROR(
      with([](auto& options) { options.features = {}; }),
      "features must have at least one feature");
  EXPECT_VALUE_ERROR(
      with([&](auto& options) {
        options.features = {
            {"a", FeatureConfig{.table = video_}},
            {"b",
             FeatureConfig{
                 .table = counting_table("video", 8, 4, Combiner::kSum)}}};
      }),
      "two are named 'video'");
}

TEST_F(EngineFixtureTest, TablesAreReadAndReplacedByName) {
  EmbeddingEngine engine(options());
  const at::Tensor pretrained = at::full({16, 2}, 0.5, at::kDouble);
  engine.update_embedding_table("user", pretrained);
  EXPECT_TRUE(
      at::equal(engine.read_rows("user", 3, 5), at::full({2, 2}, 0.5F)));
  EXPECT_TRUE(
      at::equal(engine.embedding_tables()[user_], at::full({16, 2}, 0.5F)));
  EXPECT_EQ(engine.read_rows("user", 16, 16).sizes(), at::IntArrayRef({0, 2}));
  EXPECT_VALUE_ERROR(
      engine.update_embedding_table("user", at::ones({2, 16})),
      "table 'user': expected shape [16, 2], but got [2, 16]");
  EXPECT_TYPE_ERROR(
      engine.update_embedding_table("user", at::ones({16, 2}, at::kLong)),
      "expected a dense tensor of a floating-point type, but got Long");
  EXPECT_TYPE_ERROR(
      engine.update_embedding_table("user", at::Tensor()), "no tensor");
  EXPECT_VALUE_ERROR(engine.read_rows("nobody", 0, 1), "Known: video, user");
  EXPECT_INDEX_ERROR(
      engine.read_rows("user", 3, 17), "but got the range [3, 17)");
  EXPECT_INDEX_ERROR(engine.read_rows("user", 3, 2), "the range [3, 2)");
}

TEST_F(EngineFixtureTest, ConfigShowsTablesFeaturesAndRates) {
  const auto rate = optim::LearningRate("warm", [] { return 0.1; });
  auto mixed = options();
  mixed.optimizer = optim::Adagrad{.learning_rate = rate};
  mixed.features = {
      {"watched", FeatureConfig{.table = video_}},
      {"history", FeatureConfig{.table = video_, .max_sequence_length = 3}},
      {"friends", FeatureConfig{.table = user_}},
      {"frozen",
       FeatureConfig{
           .table = make_table(
               {.vocabulary_size = 4, .dim = 1, .trainable = false})}}};
  EmbeddingEngine engine(mixed);
  EXPECT_TRUE(engine.config()["batch_size"].is_null());
  engine.build(4);
  const auto config = engine.config();
  EXPECT_EQ(config["batch_size"], 4);
  EXPECT_EQ(config["learning_rate_tags"], 1);
  ASSERT_EQ(config["tables"].size(), 3);
  const auto& video = config["tables"][0];
  EXPECT_EQ(video["name"], "video");
  EXPECT_EQ(video["num_features"], 1 + 3);
  EXPECT_EQ(video["learning_rate_tag"], 0);
  EXPECT_EQ(video["slots"].dump(), R"(["accumulators"])");
  EXPECT_EQ(video["optimizer"]["class_name"], "Adagrad");
  EXPECT_EQ(config["tables"][1]["learning_rate_tag"], 0);
  EXPECT_EQ(config["tables"][2]["name"], "table_2");
  EXPECT_TRUE(config["tables"][2]["learning_rate_tag"].is_null());
  EXPECT_TRUE(config["tables"][2]["optimizer"].is_null());
  EXPECT_EQ(config["features"][1]["path"], "history");
  EXPECT_EQ(config["features"][1]["output_shape"].dump(), "[4,3]");
  EXPECT_EQ(config["features"][3]["table"], 2);
}

// Upstream's test_same_config_different_instantiations and
// test_learning_rate_tag_order, with 30 tables of 30 callables.
TEST(EngineConfigTest, TwoInstancesAgreeAndTagsFollowTheTables) {
  std::vector<optim::LearningRate> rates;
  for (int i = 0; i < 30; ++i) {
    rates.push_back(
        optim::LearningRate(c10::str("rate ", i), [i] { return 0.01 * i; }));
  }
  const auto config = [&] {
    Nest<FeatureConfig>::List features;
    for (int i = 0; i < 30; ++i) {
      features.emplace_back(FeatureConfig{
          .table = make_table(
              {.vocabulary_size = 10,
               .dim = 1 + i * 7 % 13,
               .optimizer = optim::Adagrad{.learning_rate = rates[i]}})});
    }
    return EmbeddingEngine(
               {.features = Nest<FeatureConfig>::list(std::move(features))})
        .config();
  };
  const auto first = config();
  EXPECT_EQ(first.dump(), config().dump());
  EXPECT_EQ(first["learning_rate_tags"], 30);
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(first["tables"][i]["learning_rate_tag"], i);
  }
}

TEST(EngineTest, CountsIdsOutOfRange) {
  EmbeddingEngine engine(
      {.features = {
           {"f",
            FeatureConfig{
                .table = counting_table("t", 4, 1, Combiner::kSum),
                .out_of_range = OutOfRange::kZero}}}});
  engine.enqueue({{"f", ragged({{0, 9}, {4}, {3}})}}, {}, {.training = false});
  test::expect_close(engine.dequeue()["f"], floats({0, 0, 3}).view({3, 1}));
  EXPECT_EQ(engine.out_of_range_count(), 2);
}

}  // namespace
}  // namespace tessera
