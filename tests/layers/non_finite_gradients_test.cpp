// SPDX-License-Identifier: Apache-2.0
// Layers that refuse gradients of rows that are NaN or infinite.
#include <tessera/engine/embedding_engine.h>
#include <tessera/layers/no_table_update_guard.h>
#include <tessera/layers/partial_tpu_embedding.h>

#include "src/engine/finite_gradients.h"
#include "tests/layers/layer_test_util.h"

namespace tessera::test::non_finite_gradients_test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLarge = 3e38F;

// Two tables. Two features share the first one.
Nest<FeatureConfig> configs() {
  const auto users = numbered_table("users", 8, 3);
  const auto items = numbered_table("items", 8, 2);
  return features_of({{"user", users}, {"friends", users}, {"item", items}});
}

TPUEmbeddingOptions options_of(
    const optim::OptimizerSpec& optimizer = optim::Momentum{
        .learning_rate = 0.5}) {
  return {
      .features = configs(),
      .optimizer = optimizer,
      .non_finite_gradients = NonFiniteGradients::kRefuse};
}

TPUEmbedding layer_on(const Strategy& strategy) {
  TPUEmbeddingOptions options = options_of();
  options.strategy = strategy;
  return TPUEmbedding(options);
}

Features batch() {
  return {
      {"user", int64s({1, 2})},
      {"friends", ragged({{3, 4}, {}})},
      {"item", int64s({5, 6})}};
}

// The loss whose gradients of the activations are ones, but `value` for one element.
at::Tensor loss_with(
    const Nest<at::Tensor>& activations,
    const std::string& feature,
    int64_t row,
    float value) {
  at::Tensor loss = at::zeros({});
  for (const char* name : {"user", "friends", "item"}) {
    at::Tensor gradient = at::ones_like(activations[name]);
    if (name == feature) {
      gradient[row][1] = value;
    }
    loss = loss + (activations[name] * gradient).sum();
  }
  return loss;
}

// The gradients of concatenated activations are adjacent columns of one matrix, which the
// check reads as a whole.
TEST(NonFiniteGradientsTest, NamesTheFeatureOfAConcatenation) {
  TPUEmbedding layer(options_of(optim::SGD{.learning_rate = 1.0}));
  const auto pass = [&](int64_t row, int64_t column, float value) {
    const Nest<at::Tensor> activations = layer->forward(batch());
    const at::Tensor x = at::cat(
        {activations["user"],
         activations["friends"],
         at::zeros({2, 2}),
         activations["item"],
         at::zeros({2, 3})},
        1);
    at::Tensor gradient = at::ones_like(x);
    gradient[row][column] = value;
    x.backward(gradient);
  };
  const std::string before = saved(layer);
  EXPECT_VALUE_ERROR(pass(1, 2, kNan), "feature 'user'] the gradients of");
  EXPECT_VALUE_ERROR(pass(0, 5, kInfinity), "feature 'friends'] the gradients");
  EXPECT_VALUE_ERROR(pass(1, 9, kNan), "feature 'item'] the gradients of");
  EXPECT_EQ(saved(layer), before);
  pass(0, 7, kNan);  // of the first zeros
  pass(1, 3, kNan);  // no row has this gradient, because the bag is empty
  EXPECT_NE(saved(layer), before);
}

class RefusingTest : public testing::TestWithParam<Strategy> {};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    RefusingTest,
    gradient_forms(),
    strategy_name);

TEST_P(RefusingTest, ThePassChangesNothingAndTheNextOneTrains) {
  TPUEmbedding layer = layer_on(GetParam());
  TableOptimizer optimizer(layer);
  const auto pass = [&](const std::string& feature, int64_t row, float value) {
    loss_with(layer->forward(batch()), feature, row, value).backward();
    optimizer.step();
  };
  pass("user", 0, 2.0F);
  const std::string before = saved(layer);
  expect_refusals<std::tuple<std::string, int64_t, float>>(
      {{{"user", 1, kNan},
        "[table 'users', feature 'user'] the gradients of rows must be finite, "
        "but index 1 of the batch gives NaN. No table was changed."},
       {{"friends", 0, kInfinity},
        "[table 'users', feature 'friends'] the gradients of rows must be "
        "finite, but index 0 of the batch gives infinity."},
       {{"item", 0, -kInfinity},
        "[table 'items', feature 'item'] the gradients of rows must be finite, "
        "but index 0 of the batch gives -infinity."}},
      [&](const std::tuple<std::string, int64_t, float>& x) {
        std::apply(pass, x);
      });
  layer->zero_grad();
  EXPECT_TRUE(saved(layer) == before);
  EXPECT_EQ(layer->iterations(), 1);
  pass("user", 0, 2.0F);
  EXPECT_EQ(layer->iterations(), 2);
  EXPECT_FALSE(saved(layer) == before);
}

// Its gradient belongs to no row.
TEST_P(RefusingTest, AnEmptyBagMayHaveAnyGradient) {
  TPUEmbedding layer = layer_on(GetParam());
  TableOptimizer optimizer(layer);
  loss_with(layer->forward(batch()), "friends", 1, kNan).backward();
  optimizer.step();
  EXPECT_EQ(layer->iterations(), 1);
  for (const at::Tensor& table : tables_of(layer)) {
    EXPECT_TRUE(at::isfinite(table).all().item<bool>());
  }
}

TEST_P(RefusingTest, AGuardedPassIsNotChecked) {
  TPUEmbedding layer = layer_on(GetParam());
  const std::string before = saved(layer);
  {
    const NoTableUpdateGuard guard(layer);
    loss_with(layer->forward(batch()), "user", 0, kNan).backward();
  }
  EXPECT_TRUE(saved(layer) == before);
}

TEST(NonFiniteGradientsTest, WithoutTheOptionANaNStaysInTheRow) {
  TPUEmbedding layer(configs(), optim::Momentum{.learning_rate = 0.5});
  loss_with(layer->forward(batch()), "user", 1, kNan).backward();
  EXPECT_FALSE(
      at::isfinite(layer->embedding_tables()["users"][2][1]).item<bool>());
}

// A weight makes the gradient of the row infinite.
TEST(NonFiniteGradientsTest, WeightsCount) {
  TPUEmbedding layer(options_of());
  const std::string before = saved(layer);
  const auto pass = [&](float weight) {
    const auto activations =
        layer->forward(batch(), {{"friends", floats({2}, {1.0F, weight})}});
    loss_with(activations, "friends", 0, kLarge).backward();
  };
  EXPECT_VALUE_ERROR(
      pass(100.0F), "feature 'friends'] the gradients of rows must be finite");
  EXPECT_TRUE(saved(layer) == before);
  pass(0.5F);
  EXPECT_EQ(layer->iterations(), 1);
}

TEST(NonFiniteGradientsTest, ASumOfFiniteGradientsMayOverflow) {
  TPUEmbedding layer(options_of());
  const std::string before = saved(layer);
  const auto pass = [&](int64_t user, int64_t other, float factor) {
    const auto activations = layer->forward(
        {{"user", int64s({user, other})},
         {"friends", ragged({{0}, {0}})},
         {"item", int64s({5, 6})}});
    (activations["user"] * factor).sum().backward();
  };
  EXPECT_VALUE_ERROR(
      pass(3, 3, kLarge),
      "[table 'users', features 'user', 'friends'] the gradients of rows must "
      "be finite, but the sum of a row's gradients overflows float32.");
  EXPECT_TRUE(saved(layer) == before);
  pass(3, 4, kLarge);
  EXPECT_EQ(layer->iterations(), 1);
}

// Gradients of a concatenation have a stride, and those of sum() have the stride 0. A
// value at any place of a large batch is found.
TEST(NonFiniteGradientsTest, EveryElementIsRead) {
  for (const int64_t dim : {1, 3, 16, 37}) {
    SCOPED_TRACE(dim);
    const auto table = numbered_table("t", 50, dim);
    TPUEmbedding layer = layer_of(
        features_of({{"a", table}, {"b", table}}),
        optim::SGD{.learning_rate = 0.1},
        {.non_finite_gradients = NonFiniteGradients::kRefuse});
    const int64_t rows = 3000;
    const Features features{
        {"a", at::randint(50, {rows}, at::kLong)},
        {"b", at::randint(50, {rows}, at::kLong)}};
    for (const int64_t place :
         {int64_t{0},
          dim,
          2 * dim * (rows / 2) + dim / 2,
          2 * dim * rows - 1}) {
      at::Tensor gradient = at::ones({rows, 2 * dim});
      gradient.view({-1})[place] = kNan;
      const auto pass = [&](bool is_concatenated) {
        const auto activations = layer->forward(features);
        if (is_concatenated) {
          at::cat({activations["a"], activations["b"]}, 1).backward(gradient);
        } else {
          const at::Tensor half = gradient.narrow(1, 0, dim).contiguous();
          activations["a"].backward(half);
        }
      };
      const std::string name = place / dim % 2 == 0 ? "'a'" : "'b'";
      EXPECT_VALUE_ERROR(
          pass(true),
          "feature " + name +
              "] the gradients of rows must be finite, but "
              "index " +
              std::to_string(place / (2 * dim)) + " of the batch");
      if (name == "'a'") {
        EXPECT_VALUE_ERROR(pass(false), "of the batch gives NaN");
      }
    }
    EXPECT_VALUE_ERROR(
        (layer->forward(features)["b"].sum() * kInfinity).backward(),
        "feature 'b'] the gradients of rows must be finite, but index 0");
    EXPECT_EQ(layer->iterations(), 0);
  }
}

TEST(NonFiniteGradientsTest, ARefusedPassIsNotAccumulated) {
  TPUEmbedding layer(options_of(
      optim::SGD{.learning_rate = 1.0, .gradient_accumulation_steps = 2}));
  TPUEmbedding other(options_of(
      optim::SGD{.learning_rate = 1.0, .gradient_accumulation_steps = 2}));
  const auto pass = [&](TPUEmbedding& trained, float value) {
    loss_with(trained->forward(batch()), "user", 0, value).backward();
  };
  pass(layer, 2.0F);
  EXPECT_VALUE_ERROR(pass(layer, kNan), "feature 'user'");
  pass(layer, 3.0F);
  pass(other, 2.0F);
  pass(other, 3.0F);
  EXPECT_TRUE(saved(layer) == saved(other));
}

TEST(NonFiniteGradientsTest, TablesWithKeysAreChecked) {
  const auto table = make_table(
      {.name = "keys", .dim = 2, .keys = DynamicKeys{.capacity = 5}});
  TPUEmbedding layer = layer_of(
      features_of({{"key", table}}),
      optim::SGD{.learning_rate = 0.1},
      {.non_finite_gradients = NonFiniteGradients::kRefuse});
  const Features features{{"key", int64s({70, 80})}};
  layer->forward(features)["key"].sum().backward();
  const std::string before = saved(layer);
  EXPECT_VALUE_ERROR(
      layer->forward({{"key", int64s({70, 90})}})["key"]
          .mul(floats({2, 1}, {1.0F, kNan}))
          .sum()
          .backward(),
      "[table 'keys', feature 'key'] the gradients of rows must be finite");
  EXPECT_TRUE(saved(layer) == before);
}

TEST(NonFiniteGradientsTest, FrozenTablesAreNotChecked) {
  const auto users = numbered_table("users", 8, 3);
  const auto frozen = make_table(
      {.name = "frozen", .vocabulary_size = 4, .dim = 2, .trainable = false});
  TPUEmbeddingOptions options = options_of();
  options.features =
      features_of({{"user", users}, {"friends", users}, {"item", frozen}});
  TPUEmbedding layer(options);
  loss_with(
      layer->forward(
          {{"user", int64s({1, 2})},
           {"friends", ragged({{3, 4}, {}})},
           {"item", int64s({1, 2})}}),
      "item",
      0,
      kNan)
      .backward();
  EXPECT_EQ(layer->iterations(), 1);
}

struct Stepped {
  explicit Stepped(
      NonFiniteGradients non_finite_gradients,
      CombinedOptions options = {})
      : layer([&] {
          TPUEmbeddingOptions of_layer = options_of();
          of_layer.apply = Apply::kOnStep;
          of_layer.non_finite_gradients = non_finite_gradients;
          return TPUEmbedding(of_layer);
        }()),
        combined(
            torch::optim::SGD(layer->parameters(), 0.1),
            {layer},
            options) {}

  void backward(float value) {
    loss_with(layer->forward(batch()), "friends", 0, value).backward();
  }

  TPUEmbedding layer;
  Combined combined;
};

TEST(NonFiniteGradientsTest, AStepOfACombinedRefusesThem) {
  Stepped run(NonFiniteGradients::kRefuse);
  const std::string before = saved(run.layer);
  run.backward(1.0F);
  run.backward(kNan);
  run.backward(1.0F);
  EXPECT_VALUE_ERROR(
      run.combined.step(),
      "[table 'users', feature 'friends'] the gradients of rows must be "
      "finite, but index 0 of the batch gives NaN. No table was changed.");
  EXPECT_TRUE(saved(run.layer) == before);
  run.combined.zero_grad();
  run.backward(1.0F);
  run.combined.step();
  EXPECT_EQ(run.layer->iterations(), 1);
}

TEST(NonFiniteGradientsTest, ACombinedThatSkipsComesFirst) {
  Stepped run(NonFiniteGradients::kRefuse, {.non_finite = NonFinite::kSkip});
  const std::string before = saved(run.layer);
  run.backward(kNan);
  run.combined.step();
  EXPECT_EQ(run.combined.skipped_steps(), 1);
  EXPECT_TRUE(saved(run.layer) == before);
  run.backward(1.0F);
  run.combined.step();
  EXPECT_EQ(run.layer->iterations(), 1);
}

TEST(NonFiniteGradientsTest, APartialLayerPassesTheOptionOn) {
  PartialTPUEmbedding layer(PartialTPUEmbeddingOptions{
      .features = configs(),
      .optimizer = optim::SGD{.learning_rate = 0.1},
      .size_threshold = std::nullopt,
      .non_finite_gradients = NonFiniteGradients::kRefuse});
  EXPECT_VALUE_ERROR(
      loss_with(layer->forward(batch()), "user", 1, kNan).backward(),
      "[table 'users', feature 'user'] the gradients of rows must be finite");
}

TEST(NonFiniteGradientsTest, AnEmbeddingEngineRefusesThem) {
  EmbeddingEngine engine(
      {.features = configs(),
       .optimizer = optim::SGD{.learning_rate = 0.1},
       .non_finite_gradients = NonFiniteGradients::kRefuse});
  const auto train = [&](float value) {
    engine.enqueue(batch());
    loss_with(engine.dequeue(), "user", 0, value).backward();
    engine.apply_gradients();
  };
  EXPECT_VALUE_ERROR(
      train(kNan),
      "[table 'users', feature 'user'] the gradients of rows must be finite");
}

TEST(NonFiniteGradientsTest, AScopeHoldsForAllLayersOfItsThread) {
  TPUEmbedding layer(configs(), optim::Momentum{.learning_rate = 0.5});
  const std::string before = saved(layer);
  {
    const RefuseNonFiniteScope outer;
    { const RefuseNonFiniteScope inner; }
    EXPECT_VALUE_ERROR(
        loss_with(layer->forward(batch()), "user", 1, kNan).backward(),
        "feature 'user'");
  }
  EXPECT_TRUE(saved(layer) == before);
  loss_with(layer->forward(batch()), "user", 1, kNan).backward();
  EXPECT_FALSE(saved(layer) == before);
}

}  // namespace tessera::test::non_finite_gradients_test
