// SPDX-License-Identifier: Apache-2.0
// The code of docs/keras.md, which check_docs.cmake compares with the page.
#include <tessera/tessera.h>

#include "tests/test_util.h"

namespace optim = tessera::optim;
using tessera::FeatureConfig;

namespace keras_test {

TEST(KerasPageTest, TheLayerTrainsTablesAndTower) {
  // snippet: tables
  const auto users = tessera::make_table(
      {.name = "users", .vocabulary_size = 10'000, .dim = 16});
  const auto movies = tessera::make_table(
      {.name = "movies",
       .vocabulary_size = 5'000,
       .dim = 16,
       .combiner = tessera::Combiner::kSum,
       .optimizer = optim::Adagrad{.learning_rate = 0.1}});
  tessera::TPUEmbedding embedding(tessera::TPUEmbeddingOptions{
      .features =
          {{"user", FeatureConfig{.table = users}},
           {"watched", FeatureConfig{.table = movies}},
           {"session",
            FeatureConfig{.table = movies, .max_sequence_length = 3}}},
      .optimizer = optim::Adam{.learning_rate = 0.001}});
  // end snippet

  // snippet: features
  const tessera::Features features{
      {"user", torch::tensor({7, 3})},
      {"watched",
       tessera::RaggedFeature{
           .values = torch::tensor({1, 2, 4}),
           .row_splits = torch::tensor({0, 2, 3})}},
      {"session",
       tessera::SparseFeature{
           .indices = torch::tensor({0, 0, 0, 2, 1, 1}).view({3, 2}),
           .values = torch::tensor({1, 9, 4}),
           .dense_shape = torch::tensor({2, 4})}}};
  // end snippet
  const auto labels = torch::tensor({1.0F, 0.0F});
  torch::nn::Sequential tower(
      tessera::Concatenate(), torch::nn::Linear(16 + 16 + 3 * 16, 1));
  auto parameters = embedding->parameters();
  for (const auto& parameter : tower->parameters()) {
    parameters.push_back(parameter);
  }
  torch::optim::Adam optimizer(parameters, 1e-3);
  const auto row = [&](const auto& table, int64_t id) {
    return embedding->embedding_tables()[table][id].clone();
  };
  const auto user_before = row(users, 7);
  const auto unseen_before = row(users, 8);
  const auto movie_before = row(movies, 9);
  const auto step = [&] {
    // snippet: step
    optimizer.zero_grad();
    const auto activations = embedding->forward(features);
    const auto logits = tower->forward(activations).squeeze(1);
    const auto loss = torch::binary_cross_entropy_with_logits(logits, labels);
    loss.backward();  // updates the tables
    optimizer.step();  // updates the dense weights
    // end snippet
    EXPECT_EQ(activations["user"].sizes(), (at::IntArrayRef{2, 16}));
    EXPECT_EQ(activations["watched"].sizes(), (at::IntArrayRef{2, 16}));
    EXPECT_EQ(activations["session"].sizes(), (at::IntArrayRef{2, 3, 16}));
    return loss.item<double>();
  };
  const double first = step();
  for (int i = 0; i < 20; ++i) {
    step();
  }
  EXPECT_LT(step(), first);
  EXPECT_EQ(embedding->iterations(), 22);
  EXPECT_FALSE(at::equal(row(users, 7), user_before));
  EXPECT_TRUE(at::equal(row(users, 8), unseen_before));
  EXPECT_FALSE(at::equal(row(movies, 9), movie_before));
}

TEST(KerasPageTest, ConvertsOptimizersFromAndToKeras) {
  // snippet: keras_json
  // json.dumps(keras.optimizers.serialize(keras.optimizers.Adam(0.01)))
  const std::string text = R"({
      "module": "keras.optimizers", "class_name": "Adam",
      "config": {
          "name": "adam", "learning_rate": 0.01, "weight_decay": null,
          "clipnorm": null, "global_clipnorm": null, "clipvalue": null,
          "use_ema": false, "ema_momentum": 0.99,
          "ema_overwrite_frequency": null, "loss_scale_factor": null,
          "gradient_accumulation_steps": null,
          "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-07, "amsgrad": false},
      "registered_name": null})";

  const auto as_tpu = optim::translate_keras_optimizer(text);
  const auto lazy =
      optim::translate_keras_optimizer(text, optim::Fidelity::kLazy);
  const auto exact =
      optim::translate_keras_optimizer(text, optim::Fidelity::kExact);
  const auto for_keras = optim::to_keras(exact);
  // end snippet
  EXPECT_EQ(as_tpu, optim::OptimizerSpec(optim::Adam{.learning_rate = 0.01}));
  ASSERT_NE(lazy.get_if<optim::Adam>(), nullptr);
  EXPECT_TRUE(lazy.get_if<optim::Adam>()->bias_correction);
  EXPECT_FALSE(optim::sweeps_all_rows(lazy));
  EXPECT_TRUE(optim::sweeps_all_rows(exact));
  EXPECT_EQ(for_keras["class_name"], "Adam");
  EXPECT_EQ(
      optim::translate_keras_optimizer(for_keras, optim::Fidelity::kExact),
      exact);
}

TEST(KerasPageTest, LearningRatesMayBeSchedulesAndFunctions) {
  double current_rate = 0.5;
  // snippet: rates
  const optim::SGD scheduled{
      .learning_rate = optim::CosineDecay{
          .initial_learning_rate = 0.1, .decay_steps = 10'000}};
  const optim::SGD computed{.learning_rate = [&] { return current_rate; }};
  // end snippet
  EXPECT_NEAR(scheduled.learning_rate.value(5'000, "here"), 0.05, 1e-9);
  current_rate = 0.25;
  EXPECT_EQ(computed.learning_rate.value(0, "here"), 0.25);
}

TEST(KerasPageTest, TheMidLevelApiIsTheEngine) {
  const auto movies = tessera::make_table(
      {.name = "movies",
       .vocabulary_size = 10,
       .dim = 2,
       .combiner = tessera::Combiner::kSum});
  const tessera::Features features{{"movie", torch::tensor({4, 4, 5})}};
  const auto loss_of = [](const tessera::Nest<torch::Tensor>& activations) {
    return activations["movie"].sum();
  };
  // snippet: engine
  tessera::EmbeddingEngine engine(
      {.features = {{"movie", FeatureConfig{.table = movies}}},
       .optimizer = optim::SGD{.learning_rate = 0.1}});
  engine.enqueue(features);
  const auto activations = engine.dequeue();
  loss_of(activations).backward();  // the model and its loss
  engine.apply_gradients();  // the grad() of the activations, or what you give
  // end snippet
  const auto rows = engine.read_rows("movies", 4, 6);
  tessera::test::expect_close(
      rows[0], activations["movie"][0] - 0.2);  // summed, applied once
  tessera::test::expect_close(rows[1], activations["movie"][2] - 0.1);
}

TEST(KerasPageTest, AnyOptimizerTrainsTheVariablesOfTheTables) {
  const auto movies = tessera::make_table(
      {.name = "movies",
       .vocabulary_size = 10,
       .dim = 2,
       .initializer = tessera::initializers::Constant{1.0}});
  const tessera::Features features{{"movie", torch::tensor({4, 4, 5})}};
  // snippet: variables
  tessera::TPUEmbedding embedding(tessera::TPUEmbeddingOptions{
      .features = {{"movie", FeatureConfig{.table = movies}}},
      .strategy = tessera::Strategy::padded()});
  std::vector<torch::Tensor> variables;
  for (const auto& table : embedding->embedding_tables()) {
    variables.push_back(table.variable);
  }
  torch::optim::SGD optimizer(variables, /*lr=*/0.1);
  embedding->forward(features)["movie"].sum().backward();
  optimizer.step();  // updates the tables
  // end snippet
  const auto rows = embedding->embedding_tables()["movies"];
  tessera::test::expect_close(rows[4], torch::full({2}, 0.8));
  tessera::test::expect_close(rows[5], torch::full({2}, 0.9));
  tessera::test::expect_close(rows[6], torch::full({2}, 1.0));
}

TEST(KerasPageTest, LooksUpTablesOfTheCaller) {
  const auto users =
      tessera::make_table({.name = "users", .vocabulary_size = 3, .dim = 2});
  const auto rows = torch::rand({3, 2});
  // snippet: serving
  const tessera::EmbeddingTables tables(
      {{.config = users, .name = "users", .parameters = rows}});
  const auto activations = tessera::serving_embedding_lookup(
      {{"user", torch::tensor({2, 0})}},
      {},
      tables,
      {{"user", FeatureConfig{.table = users}}});
  // end snippet
  EXPECT_TRUE(at::equal(activations["user"][0], rows[2]));
  EXPECT_TRUE(at::equal(activations["user"][1], rows[0]));
}

}  // namespace keras_test
