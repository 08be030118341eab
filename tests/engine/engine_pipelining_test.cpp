// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/engine_fixture.h"

namespace tessera::test::engine_pipelining_test {

// One feature with one row. Each update lowers the row by 1.
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

TEST_F(PipeliningTest, BatchesLookedUpAheadGetTheirOwnGradients) {
  EmbeddingEngine engine(options());
  enqueue(engine, "0");
  enqueue(engine, "1");
  (engine.dequeue("1")["f"].sum() * 10.0F).backward();
  (engine.dequeue("0")["f"].sum() * 3.0F).backward();
  engine.apply_gradients({}, "0");
  EXPECT_EQ(engine.read_rows("t", 0, 1).item<float>(), -3);
  engine.apply_gradients({}, "1");
  EXPECT_EQ(engine.read_rows("t", 0, 1).item<float>(), -13);
}

// Another thread may call apply_gradients() at any time.
TEST_F(PipeliningTest, GradientsAreNotReadBeforeTheLookupHasEnded) {
  EmbeddingEngine engine(options());
  for (int i = 0; i < 50; ++i) {
    enqueue(engine, "b");
    std::thread eager([&] {
      for (bool is_done = false; !is_done;) {
        try {
          engine.apply_gradients({}, "b");
          ADD_FAILURE() << "there are no gradients";
          is_done = true;
        } catch (const c10::ValueError& error) {
          const std::string text = error.what_without_backtrace();
          const auto has_message = [&](const char* part) {
            return text.find(part) != std::string::npos;
          };
          is_done = !has_message("has not been dequeued") &&
              !has_message(
                  "expected the batch 'b' with its activations, but its "
                  "dequeue() has not returned yet");
          EXPECT_EQ(
              is_done,
              has_message("no activation of the batch 'b' has a gradient"))
              << text;
        }
      }
    });
    engine.dequeue("b");
    eager.join();
    engine.drop("b");
  }
  EXPECT_EQ(engine.iterations(), 0);
  EXPECT_EQ(engine.read_rows("t", 0, 1).item<float>(), 0);
}

TEST_F(PipeliningTest, ActivationsAreNeverMoreThanOneStepStale) {
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

TEST_F(PipeliningTest, DroppingABatchEndsTheWaitForItsGradients) {
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
  // Each batch is enqueued after the gradients of the previous step, so its lookup sees
  // all updates.
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_EQ(seen[0][step], -step);
    EXPECT_EQ(seen[1][step], -step);
  }
}

TEST_F(PipeliningTest, SeveralConsumersTakeOneBatchEach) {
  EmbeddingEngine engine(options());
  for (const char* name : {"0", "1", "2", "3"}) {
    enqueue(engine, name);
  }
  dequeue(engine, "0");
  dequeue(engine, "1");
  // Both threads wait for updates.
  std::thread first([&] { engine.dequeue("2"); });
  std::thread second([&] { engine.dequeue("3"); });
  engine.apply_gradients({{"f", at::ones({1, 1})}}, "0");
  engine.apply_gradients({{"f", at::ones({1, 1})}}, "1");
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

TEST_F(PipeliningTest, AProducerAndATrainerLoseNoBatch) {
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

}  // namespace tessera::test::engine_pipelining_test
