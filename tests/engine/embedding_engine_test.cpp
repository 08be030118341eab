// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizers/adagrad.h>

#include "tests/engine/engine_fixture.h"

namespace tessera::test::embedding_engine_test {

using std::chrono::milliseconds;

// A loss whose gradient with respect to each activation is the activation.
at::Tensor half_square(const Nest<at::Tensor>& activations) {
  at::Tensor sum = at::zeros({});
  for (const at::Tensor& activation : activations.flatten()) {
    sum = sum + activation.square().sum() * 0.5F;
  }
  return sum;
}

void expect_same_rows(EmbeddingEngine& one, EmbeddingEngine& other) {
  for (const auto& [name, rows] :
       {std::pair{"video", 8}, std::pair{"user", 16}}) {
    EXPECT_TENSOR_EQ(
        one.read_rows(name, 0, rows), other.read_rows(name, 0, rows))
        << name;
  }
}

// Applies activations as gradients.
void train(EmbeddingEngine& engine, const Features& batch) {
  engine.enqueue(batch);
  engine.apply_gradients(engine.dequeue());
}

TEST_F(EngineFixtureTest, OneStepGivesUpstreamsTables) {
  EmbeddingEngine engine(options());
  engine.enqueue(batch());
  const Nest<at::Tensor> activations = engine.dequeue();
  expect_close(
      activations["watched"], floats({0, 1, 2, 3, 4, 6, 8, 10}).view({2, 4}));
  expect_close(
      activations["favorited"], floats({4, 6, 8, 10, 4, 5, 6, 7}).view({2, 4}));
  expect_close(activations["friends"], floats({6, 7, 2, 3}).view({2, 2}));
  // The loss is the sum over features of mean_b sum_d act^2, so dL/dact = act.
  engine.apply_gradients(activations);
  EXPECT_EQ(engine.iterations(), 1);
  expect_close(
      engine.read_rows("video", 0, 2),
      floats({-.8F, -.3F, .2F, .7F, 2.8F, 3.3F, 3.8F, 4.3F}).view({2, 4}));
  expect_close(
      engine.read_rows("user", 0, 4),
      floats({-.0666667F, .9F, 1.933333F, 2.9F, 3.933333F, 4.9F, 5.4F, 6.3F})
          .view({4, 2}));
  expect_close(engine.read_rows("user", 4, 16), count_up(at::arange(4, 16), 2));
}

TEST_F(EngineFixtureTest, AMissingGradientIsAGradientOfZeros) {
  EmbeddingEngine engine(options());
  engine.enqueue(batch());
  const auto activations = engine.dequeue();
  engine.apply_gradients(
      of_features(at::Tensor(), at::Tensor(), at::ones({2, 2})));
  EXPECT_TENSOR_EQ(engine.read_rows("video", 0, 8), count_up(at::arange(8), 4));
  const at::Tensor user = engine.read_rows("user", 0, 4);
  const float third = .1F / 3;
  expect_close(
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

TEST_F(EngineFixtureTest, ActivationsAreLeavesWhoseGradientsAreApplied) {
  EmbeddingEngine engine(options());
  EmbeddingEngine explicit_engine(options());
  for (int step = 0; step < 3; ++step) {
    engine.enqueue(batch());
    const auto activations = engine.dequeue();
    for (const at::Tensor& activation : activations.flatten()) {
      EXPECT_TRUE(activation.requires_grad());
      EXPECT_TRUE(activation.is_leaf());
    }
    half_square(activations).backward();
    engine.apply_gradients();

    train(explicit_engine, batch());
  }
  EXPECT_EQ(engine.iterations(), 3);
  expect_same_rows(engine, explicit_engine);
}

TEST_F(EngineFixtureTest, KeepsTheActivationsWhoseGradientsItReads) {
  EmbeddingEngine engine(options());
  EmbeddingEngine explicit_engine(options());
  engine.enqueue(batch());
  // Only the engine keeps the activations.
  half_square(engine.dequeue()).backward();
  engine.apply_gradients({});
  train(explicit_engine, batch());
  expect_same_rows(engine, explicit_engine);
}

TEST_F(EngineFixtureTest, EachBatchInFlightHasItsOwnGradients) {
  EmbeddingEngine engine(options());
  EmbeddingEngine explicit_engine(options());
  const std::vector<std::string> names{"a", "b", "c"};
  for (EmbeddingEngine* each : {&engine, &explicit_engine}) {
    for (const std::string& name : names) {
      each->enqueue(batch(), {}, {.name = name});
    }
  }
  std::vector<Nest<at::Tensor>> activations;
  float scale = 1.0F;
  for (const std::string& name : names) {
    (half_square(engine.dequeue(name)) * scale).backward();
    activations.push_back(explicit_engine.dequeue(name));
    scale *= 2.0F;
  }
  for (const size_t i : {1, 2, 0}) {
    engine.apply_gradients({}, names[i]);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& activation : activations[i].flatten()) {
      gradients.push_back(activation * (1 << i));
    }
    explicit_engine.apply_gradients(activations[i].pack(gradients), names[i]);
    expect_same_rows(engine, explicit_engine);
  }
}

TEST_F(EngineFixtureTest, GivenGradientsReplaceThoseOfTheActivations) {
  EmbeddingEngine engine(options());
  EmbeddingEngine explicit_engine(options());
  engine.enqueue(batch());
  const auto activations = engine.dequeue();
  (half_square(activations) * 100.0F).backward();
  engine.apply_gradients(ones_like(activations));
  explicit_engine.enqueue(batch());
  explicit_engine.apply_gradients(ones_like(explicit_engine.dequeue()));
  expect_same_rows(engine, explicit_engine);
}

TEST_F(EngineFixtureTest, AnActivationOutsideTheLossHasAGradientOfZeros) {
  const Warnings warnings;
  auto decays = options();
  decays.optimizer =
      optim::SGD{.learning_rate = 0.1, .weight_decay_factor = 0.5};
  EmbeddingEngine engine(decays);
  engine.enqueue(batch());
  engine.dequeue()["friends"].sum().backward();
  engine.apply_gradients();
  ASSERT_EQ(warnings.texts.size(), 1U);
  EXPECT_CONTAINS(
      warnings.texts[0], "[feature 'watched'] no gradient reached its");
  // The row counts as touched, although it has no gradient.
  expect_close(
      engine.read_rows("video", 0, 2), count_up(at::arange(2), 4) * 0.5);
}

TEST_F(EngineFixtureTest, OnlyTrainingOfTrainableTablesNeedsGradients) {
  auto frozen = options();
  frozen.features = {
      {"trained", FeatureConfig{.table = video_}},
      {"frozen",
       FeatureConfig{
           .table = make_table(
               {.vocabulary_size = 4, .dim = 1, .trainable = false})}}};
  EmbeddingEngine engine(frozen);
  const Features ids{{"trained", int64s({1})}, {"frozen", int64s({2})}};
  engine.enqueue(ids, {}, {.training = false, .name = "eval"});
  engine.enqueue(ids);
  for (const at::Tensor& activation : engine.dequeue("eval").flatten()) {
    EXPECT_FALSE(activation.requires_grad());
  }
  const auto activations = engine.dequeue();
  EXPECT_TRUE(activations["trained"].requires_grad());
  EXPECT_FALSE(activations["frozen"].requires_grad());
  (activations["trained"].sum() * activations["frozen"].sum()).backward();
  engine.apply_gradients();
  EXPECT_EQ(engine.iterations(), 1);
}

TEST_F(EngineFixtureTest, AFailedUpdateKeepsTheGradientsOfTheActivations) {
  bool fails = true;
  auto unsteady = options();
  unsteady.optimizer = optim::SGD{.learning_rate = [&] {
    TORCH_CHECK(!fails, "no rate yet");
    return 0.1;
  }};
  EmbeddingEngine engine(unsteady);
  EmbeddingEngine explicit_engine(options());
  engine.enqueue(batch());
  half_square(engine.dequeue()).backward();
  EXPECT_TORCH_ERROR(engine.apply_gradients(), "no rate yet");
  EXPECT_EQ(engine.iterations(), 0);
  expect_same_rows(engine, explicit_engine);
  fails = false;
  engine.apply_gradients();
  train(explicit_engine, batch());
  expect_same_rows(engine, explicit_engine);
}

TEST_F(EngineFixtureTest, SequencesAreTruncatedAndPaddedWithoutGradient) {
  auto with_sequences = options();
  with_sequences.features = configs(/*length=*/1);
  EmbeddingEngine engine(with_sequences);
  engine.enqueue(of_features<Feature>(
      sparse({{0}, {0, 1}}, 2),
      ragged({{0, 1, 5}, {1}}),
      sparse({{3}, {0, 1, 2}}, 3)));
  const auto activations = engine.dequeue();
  EXPECT_EQ(activations["watched"].sizes(), at::IntArrayRef({2, 2, 4}));
  EXPECT_EQ(activations["favorited"].sizes(), at::IntArrayRef({2, 2, 4}));
  EXPECT_EQ(activations["friends"].sizes(), at::IntArrayRef({2, 3, 2}));
  expect_close(activations["watched"][0][1], at::zeros({4}));
  engine.apply_gradients(ones_like(activations));
  expect_close(
      engine.read_rows("video", 0, 8),
      count_up(at::arange(8), 4) -
          floats({.3F, .3F, 0, 0, 0, 0, 0, 0}).unsqueeze(1));
  expect_close(
      engine.read_rows("user", 0, 4), count_up(at::arange(4), 2) - .1F);
}

TEST_F(EngineFixtureTest, NamesIdentifyBatches) {
  EmbeddingEngine engine(options());
  engine.enqueue(batch(), {}, {.name = "a"});
  engine.enqueue(batch(), {}, {.training = false, .name = "eval"});
  engine.enqueue(batch(), {}, {.name = "b"});
  const auto b = engine.dequeue("b");
  const auto a = engine.dequeue("a");
  engine.apply_gradients(b, "b");
  // This batch is looked up in dequeue(), so it shows the update of b.
  const auto after_b = engine.dequeue("eval");
  expect_close(after_b["watched"][0], floats({-.8F, -.3F, .2F, .7F}));
  engine.apply_gradients(a, "a");
  EXPECT_EQ(engine.iterations(), 2);
  // Both names are free again.
  engine.enqueue(batch(), {}, {.name = "a"});
  engine.enqueue(batch(), {}, {.training = false, .name = "eval"});
}

TEST_F(EngineFixtureTest, BatchesWithoutNamesKeepTheirOrder) {
  EmbeddingEngine engine(options());
  for (int64_t id = 0; id < 3; ++id) {
    engine.enqueue(
        of_features<Feature>(ragged({{id}}), ragged({{}}), ragged({{}})));
  }
  for (int64_t id = 0; id < 3; ++id) {
    EXPECT_EQ(engine.dequeue()["watched"][0][0].item<float>(), 4.0F * id);
    engine.apply_gradients(of_features(
        at::full({1, 4}, static_cast<float>(id)),
        at::zeros({1, 4}),
        at::zeros({1, 2})));
  }
  expect_close(
      engine.read_rows("video", 0, 3),
      count_up(at::arange(3), 4) - floats({0, .1F, .2F}).unsqueeze(1));
}

// Given gradients, and those of the activations.
TEST_F(EngineFixtureTest, RefusesGradientsThatDoNotBelong) {
  const Nest<at::Tensor> given =
      of_features(at::ones({2, 4}), at::ones({2, 4}), at::ones({2, 2}));
  for (const Nest<at::Tensor>& gradients : {given, Nest<at::Tensor>()}) {
    EmbeddingEngine engine(options());
    EXPECT_TORCH_ERROR(
        engine.apply_gradients(gradients),
        "[apply_gradients] called on an unbuilt engine");
    EXPECT_TORCH_ERROR(
        engine.dequeue(), "[dequeue] called on an unbuilt engine");
    engine.enqueue(batch(), {}, {.training = false, .name = "eval"});
    engine.enqueue(batch(), {}, {.name = "train"});
    expect_refusals<std::string>(
        {{"eval",
          "the batch 'eval' of replica 0 was enqueued with training = false"},
         {"train", "has not been dequeued"},
         {"nobody",
          "no training batch 'nobody' of replica 0 waits for gradients. In "
          "flight: 'eval', 'train'."},
         {"", "no training batch without a name"}},
        [&](const std::string& name) {
          engine.apply_gradients(gradients, name);
        });
    engine.dequeue("eval");
    const auto activations = engine.dequeue("train");
    EXPECT_VALUE_ERROR(engine.dequeue("train"), "has been dequeued already");
    expect_refusals<Nest<at::Tensor>>(
        {{{},
          "no activation of the batch 'train' has a gradient. First call "
          "backward()"},
         {{{"watched", at::ones({2, 4})}}, "missing entry 'favorited'"},
         {Nest<at::Tensor>::list(
              {at::ones({2, 4}), at::ones({2, 4}), at::ones({2, 2})}),
          "expected a map here, but got a list"},
         {of_features(at::ones({2, 4}), at::ones({3, 4}), at::ones({2, 2})),
          "[feature 'favorited'] the gradient must be a dense float32 cpu "
          "tensor of shape [2, 4]"}},
        [&](const Nest<at::Tensor>& wrong) {
          engine.apply_gradients(wrong, "train");
        });
    EXPECT_EQ(engine.iterations(), 0);
    half_square(activations).backward();
    engine.apply_gradients(gradients, "train");
    EXPECT_VALUE_ERROR(
        engine.apply_gradients(gradients, "train"),
        "no training batch 'train'");
    EXPECT_EQ(engine.iterations(), 1);
  }
}

TEST_F(EngineFixtureTest, RefusesBatchesThatDoNotFit) {
  EmbeddingEngine engine(options());
  EXPECT_VALUE_ERROR(
      engine.enqueue({{"watched", ragged({{0}})}}),
      "missing entry 'favorited'");
  EXPECT_VALUE_ERROR(
      engine.enqueue(
          of_features<Feature>(
              int64s({0, 1}), ragged({{0, 1}, {1}}), ragged({{3}, {0}})),
          of_features<std::optional<Feature>>(
              Feature(floats({1, 1})), std::nullopt, std::nullopt)),
      "[feature 'watched'] weights are given, but the feature is dense");
  EXPECT_TYPE_ERROR(
      engine.enqueue(
          batch(),
          of_features<std::optional<Feature>>(
              Feature(RaggedFeature{floats({1, 1, 1}), int64s({0, 1, 3})}),
              std::nullopt,
              std::nullopt)),
      "weights must be sparse like the feature");
  EXPECT_INDEX_ERROR(
      engine.enqueue(batch(), {}, {.replica = 1}),
      "[enqueue] replica must be in [0, 1), but got 1");
  EXPECT_INDEX_ERROR(
      engine.enqueue(
          of_features<Feature>(ragged({{8}}), ragged({{0}}), ragged({{0}}))),
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
      of_features<std::optional<Feature>>(
          Feature(half), std::nullopt, Feature(floats({.5F, .5F, .5F, .5F}))));
  const auto activations = engine.dequeue();
  expect_close(activations["watched"][1], floats({2, 3, 4, 5}));
  expect_close(activations["favorited"][0], floats({4, 6, 8, 10}));
  expect_close(activations["friends"][1], floats({2, 3}));
}

// Autograd's gradient of an imaginary part is such a tensor.
TEST_F(EngineFixtureTest, TensorsWithANegativeBitHaveTheirOwnSign) {
  EmbeddingEngine engine(options());
  const at::Tensor weights = at::_neg_view(floats({-1, -1, -1}));
  const at::Tensor ids = at::_neg_view(int64s({-1, -1}));
  engine.enqueue(
      of_features<Feature>(ragged({{0}, {0, 1}}), ids, ragged({{3}, {0}})),
      of_features<std::optional<Feature>>(
          Feature(weights), std::nullopt, std::nullopt));
  const auto activations = engine.dequeue();
  expect_close(activations["watched"][1], floats({4, 6, 8, 10}));
  expect_close(activations["favorited"][0], floats({4, 5, 6, 7}));
  engine.apply_gradients(of_features(
      at::zeros({2, 4}),
      at::_neg_view(at::full({2, 4}, -1.0F)),
      at::zeros({2, 2})));
  expect_close(
      engine.read_rows("video", 1, 2)[0], floats({3.8F, 4.8F, 5.8F, 6.8F}));
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
      "[dequeue] the batch 'late' of replica 0 has not been enqueued, or has "
      "already been finished. In flight: (none)");
  EXPECT_TORCH_ERROR(
      impatient.dequeue(),
      "[dequeue] expected a batch without a name for replica 0, but none was "
      "enqueued. In flight: (none). Call enqueue() first, or at the same time in another thread. Waited for");
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

TEST_F(EngineFixtureTest, ShutdownWakesWaitingCalls) {
  auto waits = options();
  waits.timeout = std::chrono::hours(10);
  auto engine = std::make_unique<EmbeddingEngine>(waits);
  engine->build();
  std::atomic<int> raised = 0;
  const auto expect_shutdown = [&](const std::string& name) {
    EXPECT_TORCH_ERROR(engine->dequeue(name), "has been shut down");
    ++raised;
  };
  std::thread first(expect_shutdown, "a");
  std::thread second(expect_shutdown, "b");
  std::this_thread::sleep_for(kSoon);
  engine->enqueue(batch());
  engine->shutdown();
  first.join();
  second.join();
  EXPECT_EQ(raised, 2);
  EXPECT_TORCH_ERROR(engine->enqueue(batch()), "has been shut down");
  EXPECT_TORCH_ERROR(engine->dequeue(), "has been shut down");
}

TEST_F(EngineFixtureTest, CanBeDestroyedWithLookupsAndGradientsInFlight) {
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
  failing.optimizer =
      optim::SGD{.learning_rate = optim::LearningRate("rate", [&] {
                   TORCH_CHECK(!fails, "no rate today");
                   EXPECT_EQ(self->iterations(), 0);
                   const std::string problem =
                       "expected no call of the engine within its own update";
                   EXPECT_TORCH_ERROR(self->drop("a"), problem);
                   EXPECT_TORCH_ERROR(self->shutdown(), problem);
                   return 0.1;
                 })};
  EmbeddingEngine engine(failing);
  self = &engine;
  engine.enqueue(batch(), {}, {.name = "a"});
  const auto activations = engine.dequeue("a");
  EXPECT_TORCH_ERROR(engine.apply_gradients(activations, "a"), "no rate today");
  EXPECT_TENSOR_EQ(engine.read_rows("video", 0, 8), count_up(at::arange(8), 4));
  fails = false;
  engine.apply_gradients(activations, "a");
  expect_close(
      engine.read_rows("video", 0, 1)[0], floats({-.8F, -.3F, .2F, .7F}));
}

// --- lookups for serving -----------------------------------------------------

TEST_F(EngineFixtureTest, LooksUpAnySubsetForServing) {
  EmbeddingEngine engine(options());
  const auto some = engine.embedding_lookup({{"friends", ragged({{3}, {}})}});
  EXPECT_EQ(some.size(), 1);
  expect_close(some["friends"], floats({6, 7, 0, 0}).view({2, 2}));
  EXPECT_VALUE_ERROR(
      engine.embedding_lookup({{"nobody", ragged({{3}})}}),
      "[features] 'nobody' is not among the feature configs. Known: watched, "
      "favorited, friends");
  // No batch has been enqueued yet, so no shape is fixed.
  engine.enqueue(batch());
}

TEST_F(EngineFixtureTest, LooksUpByAnotherConfigOverItsTables) {
  EmbeddingEngine engine(options());
  const Nest<FeatureConfig> serving{
      {"any", FeatureConfig{.table = user_, .max_sequence_length = 2}}};
  const auto activations =
      engine.embedding_lookup({{"any", ragged({{3, 1, 2}})}}, {}, serving);
  expect_close(activations["any"], floats({6, 7, 2, 3}).view({1, 2, 2}));
  const auto foreign = counting_table("user", 16, 2, Combiner::kMean);
  EXPECT_VALUE_ERROR(
      engine.embedding_lookup(
          {{"any", ragged({{3}})}},
          {},
          {{"any", FeatureConfig{.table = foreign}}}),
      "[feature 'any'] its table 'user' must be one of the given tables, but "
      "none of them has its TablePtr");
}

// --- options, tables, configuration ------------------------------------------

TEST_F(EngineFixtureTest, RefusesUnusableOptions) {
  using Change = std::function<void(EmbeddingEngineOptions&)>;
  expect_refusals<Change>(
      {{[](auto& options) { options.replicas = 0; },
        "replicas must be in [1, 65536], but got 0"},
       {[](auto& options) { options.replicas = int64_t{1} << 50; },
        "replicas must be in [1, 65536]"},
       {[](auto& options) {
          options.fixed_batch_size = true;
          options.verify_output_shapes = false;
        },
        "fixed_batch_size = true needs verify_output_shapes = true, which checks "
        "the batch sizes, but got false"},
       {[](auto& options) { options.queue_depth = 0; },
        "queue_depth must be >= 1"},
       {[](auto& options) { options.lookup_threads = -1; },
        "lookup_threads must be in"},
       {[](auto& options) { options.timeout = milliseconds(0); },
        "timeout must be > 0 ms"},
       {[](auto& options) { options.features = {}; },
        "features must have at least one feature"},
       {[&](auto& options) {
          options.features = {
              {"a", FeatureConfig{.table = video_}},
              {"b",
               FeatureConfig{
                   .table = counting_table("video", 8, 4, Combiner::kSum)}}};
        },
        "two are named 'video'"}},
      [&](const Change& change) {
        auto changed = options();
        change(changed);
        EmbeddingEngine engine(changed);
      });
}

TEST_F(EngineFixtureTest, TablesAreReadAndReplacedByName) {
  EmbeddingEngine engine(options());
  const at::Tensor pretrained = at::full({16, 2}, 0.5, at::kDouble);
  engine.update_embedding_table("user", pretrained);
  EXPECT_TENSOR_EQ(engine.read_rows("user", 3, 5), at::full({2, 2}, 0.5F));
  EXPECT_TENSOR_EQ(engine.embedding_tables()[user_], at::full({16, 2}, 0.5F));
  EXPECT_EQ(engine.read_rows("user", 16, 16).sizes(), at::IntArrayRef({0, 2}));
  EXPECT_VALUE_ERROR(
      engine.update_embedding_table("user", at::ones({2, 16})),
      "table 'user': expected shape [16, 2], but got [2, 16]");
  EXPECT_TYPE_ERROR(
      engine.update_embedding_table("user", at::ones({16, 2}, at::kLong)),
      "expected a dense tensor of a floating-point type, but got Long");
  EXPECT_TYPE_ERROR(
      engine.update_embedding_table("user", at::empty({16, 2}, at::kMeta)),
      "but got Float of shape [16, 2] on meta");
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

  mixed.optimizer = optim::Adagrad{.learning_rate = 0.1};
  const auto constant = EmbeddingEngine(mixed).config();
  EXPECT_EQ(constant["learning_rate_tags"], 0);
  EXPECT_TRUE(constant["tables"][0]["learning_rate_tag"].is_null());
}

// Covers upstream's test_same_config_different_instantiations and
// test_learning_rate_tag_order, with 30 tables and 30 callables.
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
  expect_close(engine.dequeue()["f"], floats({0, 0, 3}).view({3, 1}));
  EXPECT_EQ(engine.out_of_range_count(), 2);
}

EmbeddingEngineOptions one_column_options() {
  return {
      .features =
          {{"f",
            FeatureConfig{
                .table = make_table(
                    {.name = "t",
                     .vocabulary_size = 4,
                     .dim = 1,
                     .initializer = initializers::Constant{0.0}})}}},
      .optimizer = optim::SGD{.learning_rate = 1.0},
      .timeout = kSoon};
}

TEST(EngineSkippedBatchTest, AnUpdateWithoutANameIsRefusedWhileTwoAreOpen) {
  EmbeddingEngine engine(one_column_options());
  const auto gradient_for = [&](int64_t row) {
    return Nest<at::Tensor>{
        {"f", at::full({1, 1}, static_cast<float>(row + 1))}};
  };
  for (int64_t row = 0; row < 4; ++row) {
    engine.enqueue({{"f", int64s({row})}});
    const auto activations = engine.dequeue();
    if (row == 1) {
      continue;  // a loss that is not finite, without a drop()
    }
    if (row == 2) {
      const at::Tensor before = engine.read_rows("t", 0, 4);
      const char* const expected =
          "[apply_gradients] expected one training batch without a name that replica 0 has dequeued and that has no gradients, but got 2";
      EXPECT_VALUE_ERROR(engine.apply_gradients(gradient_for(row)), expected);
      activations["f"].sum().backward();
      EXPECT_VALUE_ERROR(engine.apply_gradients(), expected);
      EXPECT_TENSOR_EQ(engine.read_rows("t", 0, 4), before);
      EXPECT_EQ(engine.iterations(), 1);
      engine.drop();  // the oldest, whose update was skipped
    }
    engine.apply_gradients(gradient_for(row));
  }
  expect_close(
      engine.read_rows("t", 0, 4), floats({-1, 0, -3, -4}).view({4, 1}));
}

TEST(EngineSkippedBatchTest, AnEvaluationThatForgetsTrainingFalseIsRefused) {
  for (const Pipelining pipelining : {Pipelining::kOff, Pipelining::kOn}) {
    auto options = one_column_options();
    options.pipelining = pipelining;
    EmbeddingEngine engine(options);
    {
      const at::NoGradGuard no_grad;
      engine.enqueue({{"f", int64s({3})}});
      engine.dequeue();
    }
    engine.enqueue({{"f", int64s({0})}});
    engine.dequeue()["f"].sum().backward();
    EXPECT_VALUE_ERROR(
        engine.apply_gradients(),
        "enqueue batches of an evaluation with training = false");
    engine.drop();
    engine.apply_gradients();
    expect_close(
        engine.read_rows("t", 0, 4), floats({-1, 0, 0, 0}).view({4, 1}));
  }
}

TEST(EngineSkippedBatchTest, NamedBatchesStayOpenBesideBatchesWithoutAName) {
  EmbeddingEngine engine(one_column_options());
  engine.enqueue({{"f", int64s({3})}}, {}, {.name = "kept"});
  engine.dequeue("kept")["f"].sum().backward();
  engine.enqueue({{"f", int64s({0})}});
  engine.dequeue()["f"].sum().backward();
  engine.apply_gradients();
  engine.apply_gradients({}, "kept");
  expect_close(
      engine.read_rows("t", 0, 4), floats({-1, 0, 0, -1}).view({4, 1}));
}

TEST(EngineSkippedBatchTest, EachReplicaHasItsOwnOpenBatch) {
  auto options = one_column_options();
  options.replicas = 2;
  EmbeddingEngine engine(options);
  for (int64_t step = 0; step < 2; ++step) {
    for (int64_t replica = 0; replica < 2; ++replica) {
      engine.enqueue({{"f", int64s({replica})}}, {}, {.replica = replica});
    }
  }
  for (const auto& [first, second] : {std::pair{0, 1}, std::pair{1, 0}}) {
    engine.dequeue("", first);
    engine.dequeue("", second);
    engine.apply_gradients({{"f", at::ones({1, 1})}}, "", first);
    engine.apply_gradients({{"f", at::ones({1, 1})}}, "", second);
  }
  expect_close(
      engine.read_rows("t", 0, 4), floats({-2, -2, 0, 0}).view({4, 1}));
}

TEST(EngineSkippedBatchTest, AGrowingNumberOfOpenBatchesIsSaidOnce) {
  const Warnings warnings;
  EmbeddingEngine engine(one_column_options());
  for (int i = 0; i < 100; ++i) {
    engine.enqueue({{"f", int64s({0})}});
    engine.dequeue();
    if (i == 31) {
      EXPECT_TRUE(warnings.texts.empty());
    }
  }
  ASSERT_EQ(warnings.texts.size(), 1U);
  EXPECT_CONTAINS(
      warnings.texts[0],
      "[dequeue] 33 training batches of replica 0 were dequeued, but have no gradients");
}

}  // namespace tessera::test::embedding_engine_test
