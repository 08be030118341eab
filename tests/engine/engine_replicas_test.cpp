// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/adagrad.h>

#include "tests/engine/engine_fixture.h"

namespace tessera::test::engine_replicas_test {

Features slice(const std::vector<std::vector<int64_t>>& rows) {
  return {
      {"watched", ragged(rows)},
      {"favorited", ragged(rows)},
      {"friends", ragged(rows)}};
}

EmbeddingEngineOptions with_two_replicas(
    EmbeddingEngineOptions options,
    std::chrono::milliseconds timeout = kSoon) {
  options.replicas = 2;
  options.timeout = timeout;
  return options;
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
      expect_close(engine.read_rows(name, 0, rows), expected);
    }
  }
}

TEST_F(EngineFixtureTest, TheOrderOfReplicasDoesNotChangeABit) {
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
  EXPECT_TENSOR_EQ(tables[0], tables[1]);
  EXPECT_TENSOR_EQ(tables[0], tables[2]);
}

TEST_F(EngineFixtureTest, ReplicasInThreadsWaitForOneAnother) {
  const auto two = with_two_replicas(options(), std::chrono::minutes(5));
  EmbeddingEngine engine(two);
  engine.build();
  constexpr int kSteps = 50;
  const auto train = [&](int64_t replica) {
    for (int step = 0; step < kSteps; ++step) {
      const std::string name = "step " + std::to_string(step);
      engine.enqueue(slice({{0}}), {}, {.name = name, .replica = replica});
      const auto activations = engine.dequeue(name, replica);
      // The lookup sees all earlier updates of both replicas and no later ones.
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

TEST_F(EngineFixtureTest, ReplicasThatDisagreeGetAnError) {
  EmbeddingEngine engine(with_two_replicas(options()));
  engine.enqueue(batch(), {}, {.name = "s", .replica = 0});
  EXPECT_VALUE_ERROR(
      engine.enqueue(
          batch(), {}, {.training = false, .name = "s", .replica = 1}),
      "[enqueue] all replicas must enqueue the batch 's' with the same value of "
      "training. It was enqueued with training = true, but replica 1 enqueues it "
      "with training = false");
  EXPECT_VALUE_ERROR(
      engine.enqueue(batch(), {}, {.name = "s", .replica = 0}),
      "is in flight already");
  // Replica 1 never arrives.
  EXPECT_TORCH_ERROR(
      engine.dequeue("s", 1),
      "[dequeue] the batch 's' of replica 1 has not been enqueued, or has already "
      "been finished. In flight: 's'");
  engine.apply_gradients(engine.dequeue("s", 0), "s", 0);
  engine.enqueue(batch(), {}, {.name = "t", .replica = 0});
  EXPECT_TORCH_ERROR(
      engine.dequeue("t", 0),
      "[dequeue] the batch 't' of replica 0 waits for the update of the batch "
      "'s', which has no gradients from replica 1 yet");
  engine.drop("s");
  EXPECT_EQ(engine.dequeue("t", 0)["watched"].size(0), 2);
}

TEST_F(EngineFixtureTest, AnEvaluationBatchStaysUntilAllReplicasHaveIt) {
  EmbeddingEngine engine(with_two_replicas(options()));
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

TEST_F(EngineFixtureTest, AReusedNameWaitsForTheOtherReplicas) {
  const auto two = with_two_replicas(options(), std::chrono::minutes(5));
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

  EmbeddingEngine alone(with_two_replicas(options()));
  alone.enqueue(batch(), {}, {.name = "train"});
  alone.apply_gradients(alone.dequeue("train"), "train");
  EXPECT_TORCH_ERROR(
      alone.enqueue(batch(), {}, {.name = "train"}),
      "[enqueue] the batch 'train' of replica 0 waits for the previous batch of "
      "this name, which is not finished on replica 1.");
}

TEST_F(EngineFixtureTest, CopiesGradientsThatWaitForOtherReplicas) {
  EmbeddingEngine engine(with_two_replicas(options()));
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
  expect_close(
      engine.read_rows("video", 0, 1)[0], floats({-.1F, .9F, 1.9F, 2.9F}));
}

TEST_F(EngineFixtureTest, EachReplicaHasTheGradientsOfItsActivations) {
  EmbeddingEngine engine(with_two_replicas(options()));
  EmbeddingEngine explicit_engine(with_two_replicas(options()));
  for (const int64_t replica : {0, 1}) {
    for (EmbeddingEngine* each : {&engine, &explicit_engine}) {
      each->enqueue(slice({{0, replica}, {2}}), {}, {.replica = replica});
    }
  }
  for (const int64_t replica : {1, 0}) {
    const auto activations = engine.dequeue("", replica);
    const auto weight = static_cast<float>(replica + 1);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& activation : activations.flatten()) {
      (activation.sum() * weight).backward();
      gradients.push_back(at::ones_like(activation) * weight);
    }
    engine.apply_gradients({}, "", replica);
    // The engine has copied the gradients, so the caller may change them before the
    // other replica has passed its own.
    for (const at::Tensor& activation : activations.flatten()) {
      activation.grad().zero_();
    }
    explicit_engine.dequeue("", replica);
    explicit_engine.apply_gradients(activations.pack(gradients), "", replica);
  }
  EXPECT_EQ(engine.iterations(), 1);
  EXPECT_TENSOR_EQ(
      engine.read_rows("video", 0, 8),
      explicit_engine.read_rows("video", 0, 8));
  EXPECT_TENSOR_EQ(
      engine.read_rows("user", 0, 16),
      explicit_engine.read_rows("user", 0, 16));
}

TEST_F(EngineFixtureTest, DropsAnUnnamedBatchOnlyForAllReplicas) {
  EmbeddingEngine engine(with_two_replicas(options()));
  engine.enqueue(batch(), {}, {.replica = 0});
  EXPECT_VALUE_ERROR(
      engine.drop(),
      "all replicas must have enqueued a batch without a name before it is "
      "dropped, but some have not enqueued the oldest one");
  engine.enqueue(batch(), {}, {.replica = 1});
  engine.drop();
  EXPECT_VALUE_ERROR(engine.drop(), "no batch without a name is in flight");
}

TEST_F(EngineFixtureTest, DroppingWakesThoseWhoWaitForTheBatch) {
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

}  // namespace tessera::test::engine_replicas_test
