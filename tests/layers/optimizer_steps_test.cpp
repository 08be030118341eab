// SPDX-License-Identifier: Apache-2.0
// The updates of each optimizer over several steps, made through the layer.
#include "tests/layers/layer_test_util.h"

namespace tessera::test::optimizer_steps_test {

// A table of one column of ones.
TPUEmbedding weights_of(int64_t rows, optim::OptimizerSpec optimizer) {
  return layer_of(
      {.name = "t",
       .vocabulary_size = rows,
       .dim = 1,
       .initializer = initializers::Constant{1.0}},
      std::move(optimizer));
}

TPUEmbedding one_weight(optim::OptimizerSpec optimizer) {
  return weights_of(1, std::move(optimizer));
}

float weight_of(const TPUEmbedding& layer) {
  return layer->embedding_tables()["t"].item<float>();
}

// Makes one update of the single row. Each gradient is that of one duplicate.
void step(TPUEmbedding& layer, std::vector<float> gradients) {
  const at::Tensor upstream = at::tensor(gradients, at::kFloat).unsqueeze(1);
  const at::Tensor ids = at::zeros({upstream.size(0)}, at::kLong);
  layer->forward({{"id", ids}})["id"].backward(upstream);
}

const std::vector<float> kGradients{0.5F, -0.25F, 0.1F};

void expect_weights(
    optim::OptimizerSpec optimizer,
    const std::vector<float>& expected) {
  SCOPED_TRACE(optim::name_of(optimizer));
  auto layer = one_weight(std::move(optimizer));
  for (size_t i = 0; i < expected.size(); ++i) {
    step(layer, {kGradients[i]});
    EXPECT_NEAR(weight_of(layer), expected[i], 3e-7) << "step " << i;
  }
}

void expect_slots(
    const optim::OptimizerSpec& optimizer,
    const std::string& slot,
    const std::vector<float>& expected,
    double tolerance) {
  auto layer = one_weight(optimizer);
  for (size_t i = 0; i < expected.size(); ++i) {
    step(layer, {kGradients[i]});
    const auto value = slot_of(layer, 0, slot).item<float>();
    EXPECT_NEAR(value, expected[i], tolerance) << "step " << i;
  }
}

// The expected weights of Adam with a bias correction follow from the formulas of
// TensorFlow and Keras.
TEST(OptimizerStepsTest, ThreeStepsGiveTheseWeights) {
  struct Row {
    optim::OptimizerSpec optimizer;
    std::vector<float> weights;
  };
  const std::vector<Row> rows{
      {optim::SGD{.learning_rate = 0.1}, {0.95, 0.975, 0.965}},
      {optim::Adagrad{.learning_rate = 0.1},
       {0.915484575, 0.954409522, 0.939024906}},
      {optim::Adam{.learning_rate = 0.1},
       {0.683772234, 0.570589867, 0.414536882}},
      {optim::Adam{.learning_rate = 0.1, .epsilon = 1e-3},
       {0.684402798, 0.571401234, 0.415590051}},
      {optim::Adam{
           .learning_rate = 0.1, .epsilon = 1e-3, .sum_inside_sqrt = false},
       {0.702582564, 0.595462262, 0.44764747}},
      {optim::Adam{
           .learning_rate = 0.1,
           .sum_inside_sqrt = false,
           .bias_correction = true},
       {0.900000632, 0.873367079, 0.841842898}},
      {optim::FTRL{.learning_rate = 0.1},
       {0.380962091, 0.419887038, 0.404502423}},
      {optim::AdagradMomentum{.learning_rate = 0.1, .momentum = 0.9},
       {0.9, 0.85472136, 0.796361565}},
      {optim::AdagradMomentum{
           .learning_rate = 0.1,
           .momentum = 0.9,
           .use_nesterov = true,
           .exponent = 3.0,
           .beta2 = 0.9,
           .epsilon = 0.1},
       {0.81, 0.823068567, 0.752459605}},
      {optim::Momentum{.learning_rate = 0.1, .momentum = 0.9},
       {0.95, 0.93, 0.902}},
      {optim::Momentum{
           .learning_rate = 0.1, .momentum = 0.9, .use_nesterov = true},
       {0.905, 0.912, 0.8768}},
      {optim::Lion{.learning_rate = 0.1}, {0.9, 1.0, 0.9}},
      {optim::RMSprop{
           .learning_rate = 0.1, .rho = 0.9, .momentum = 0.5, .epsilon = 1e-3},
       {0.689913164, 0.679812504, 0.6148669}},
      {optim::RMSprop{
           .learning_rate = 0.1,
           .rho = 0.9,
           .momentum = 0.5,
           .epsilon = 1e-3,
           .centered = true},
       {0.673835963, 0.656681047, 0.587347825}},
      {optim::Adadelta{.learning_rate = 0.1, .rho = 0.95, .epsilon = 1e-3},
       {0.986391724, 0.995065332, 0.99128083}},
      {optim::ProximalAdagrad{
           .learning_rate = 0.1,
           .l1_regularization_strength = 0.01,
           .l2_regularization_strength = 0.02},
       {0.910715486, 0.945140272, 0.925369903}}};
  for (const Row& row : rows) {
    expect_weights(row.optimizer, row.weights);
  }
}

TEST(OptimizerStepsTest, ThreeStepsGiveTheseSlots) {
  expect_slots(
      optim::Adagrad{.learning_rate = 0.1},
      "accumulators",
      {0.35, 0.4125, 0.4225},
      1e-7);
  const optim::Adam adam{.learning_rate = 0.1};
  expect_slots(adam, "momenta", {0.05, 0.02, 0.028}, 1e-8);
  expect_slots(adam, "velocities", {0.00025, 0.00031225, 0.00032193775}, 1e-10);
  expect_slots(
      optim::FTRL{.learning_rate = 0.1},
      "linears",
      {-2.25380212, -2.69677333, -2.62926575},
      2e-6);
}

TEST(OptimizerStepsTest, FtrlWithEverythingSet) {
  optim::FTRL ftrl{
      .learning_rate = 0.1,
      .learning_rate_power = -0.6,
      .l1_regularization_strength = 0.01,
      .l2_regularization_strength = 0.02,
      .beta = 0.3};
  const std::vector<float> weights{0.275456135, 0.303488271, 0.292381392};
  for (const bool multiplied : {false, true}) {
    ftrl.multiply_linear_by_learning_rate = multiplied;
    expect_weights(ftrl, weights);
    const float unit = multiplied ? 0.1F : 1.0F;
    expect_slots(
        ftrl,
        "linears",
        {unit * -2.31460002F, unit * -2.71661023F, unit * -2.642435F},
        unit * 2e-6);
  }
}

TEST(OptimizerStepsTest, DuplicatesAreSummedOverAllFeaturesOfATable) {
  const auto table = make_table(
      {.name = "t",
       .vocabulary_size = 2,
       .dim = 1,
       .combiner = Combiner::kSum,
       .initializer = initializers::Zeros{},
       .optimizer = optim::Adagrad{
           .learning_rate = 1.0, .initial_accumulator_value = 1.0}});
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {
          {"dense", FeatureConfig{.table = table}},
          {"bag", FeatureConfig{.table = table}},
          {"sequence",
           FeatureConfig{.table = table, .max_sequence_length = 2}}}});
  const auto activations = layer->forward(
      {{"dense", int64s({0, 0})},
       {"bag", ragged({{0, 0, 1}})},
       {"sequence", ragged({{0, 0, 0}})}});
  (activations["dense"].sum() + 2 * activations["bag"].sum() +
   3 * activations["sequence"].sum())
      .backward();
  // The sum is 2 * 1 + 2 * 2 + 2 * 3. The third id of the sequence is cut off.
  constexpr float kSum = 12;
  expect_close(
      layer->embedding_tables()["t"],
      floats(
          {2, 1}, {-kSum / std::sqrt(1 + kSum * kSum), -2 / std::sqrt(5.0F)}));
}

TEST(OptimizerStepsTest, WithoutAccumulationDuplicatesAreStepsInOrder) {
  auto one_by_one = one_weight(
      optim::Adagrad{.learning_rate = 0.1, .use_gradient_accumulation = false});
  step(one_by_one, kGradients);
  EXPECT_NEAR(weight_of(one_by_one), 0.939024906, 3e-7);
  EXPECT_EQ(one_by_one->iterations(), 1);

  auto summed = one_weight(optim::Adagrad{.learning_rate = 0.1});
  step(summed, kGradients);
  EXPECT_NEAR(
      weight_of(summed), 1 - 0.1 * 0.35 / std::sqrt(0.1 + 0.35 * 0.35), 3e-7);
}

TEST(OptimizerStepsTest, GradientsAreClippedAfterTheSum) {
  auto layer = one_weight(optim::SGD{
      .learning_rate = 1.0,
      .clip_gradient_min = -0.1,
      .clip_gradient_max = 0.2});
  step(layer, {5.0F, -4.9F});
  EXPECT_NEAR(weight_of(layer), 1 - 0.1, 1e-6);
  step(layer, {5.0F});
  EXPECT_NEAR(weight_of(layer), 1 - 0.1 - 0.2, 1e-6);
  step(layer, {-5.0F});
  EXPECT_NEAR(weight_of(layer), 1 - 0.1 - 0.2 + 0.1, 1e-6);
}

TEST(OptimizerStepsTest, DecayComesBeforeTheRule) {
  auto plain =
      one_weight(optim::SGD{.learning_rate = 0.1, .weight_decay_factor = 0.5});
  step(plain, {1.0F});
  EXPECT_NEAR(weight_of(plain), 0.5 - 0.1, 1e-6);
  auto scaled = one_weight(optim::SGD{
      .learning_rate = 0.1,
      .weight_decay_factor = 0.5,
      .multiply_weight_decay_factor_by_learning_rate = true});
  step(scaled, {1.0F});
  EXPECT_NEAR(weight_of(scaled), 0.95 - 0.1, 1e-6);
}

TEST(OptimizerStepsTest, WeightsAreClippedLast) {
  auto layer = one_weight(optim::Adagrad{
      .learning_rate = 0.1,
      .clip_weight_min = 0.8,
      .clip_weight_max = 0.9,
      .weight_decay_factor = 0.01});
  step(layer, {0.0F});
  EXPECT_FLOAT_EQ(weight_of(layer), 0.9F);
  step(layer, {100.0F});
  EXPECT_FLOAT_EQ(weight_of(layer), 0.8F);
}

TEST(OptimizerStepsTest, OnlyTouchedRowsDecay) {
  TPUEmbedding layer = weights_of(
      3, optim::SGD{.learning_rate = 0.0, .weight_decay_factor = 0.5});
  layer->forward({{"id", int64s({1})}})["id"].sum().backward();
  expect_close(layer->embedding_tables()["t"], floats({3, 1}, {1, 0.5, 1}));
}

Nest<FeatureConfig> two_tables(
    const optim::LearningRate& first,
    const optim::LearningRate& second) {
  const auto table = [](const char* name, const optim::LearningRate& rate) {
    return FeatureConfig{
        .table = make_table(
            {.name = name,
             .vocabulary_size = 2,
             .dim = 3,
             .initializer = initializers::Zeros{},
             .optimizer = optim::SGD{.learning_rate = rate}})};
  };
  return {{"a", table("a", first)}, {"b", table("b", second)}};
}

void step_two_tables(TPUEmbedding& layer) {
  const auto activations =
      layer->forward({{"a", int64s({1})}, {"b", int64s({1})}});
  sum_of(activations).backward();
}

TEST(LearningRateTest, ACallableIsReadOncePerUpdateForAllItsTables) {
  int reads = 0;
  const optim::LearningRate decay(
      [&] { return std::max(0.5, 1.0 - 0.05 * reads++); });
  TPUEmbedding layer = layer_of(two_tables(decay, decay));
  double cumulated = 0.0;
  for (int i = 0; i < 15; ++i) {
    step_two_tables(layer);
    EXPECT_EQ(reads, i + 1);
    cumulated += std::max(0.5, 1.0 - 0.05 * i);
    for (const auto& entry : layer->embedding_tables()) {
      expect_close(entry.parameters[0], at::zeros({3}));
      expect_close(entry.parameters[1], at::full({3}, -cumulated));
    }
  }
}

TEST(LearningRateTest, ACallableMayFollowTheLayersOwnSteps) {
  TPUEmbedding layer{nullptr};
  const optim::LearningRate follow(
      [&] { return static_cast<double>(1 + layer->iterations()); });
  layer = layer_of(two_tables(follow, 0.0));
  step_two_tables(layer);
  step_two_tables(layer);
  step_two_tables(layer);
  expect_close(
      layer->embedding_tables()["a"][1], at::full({3}, -(1.0 + 2.0 + 3.0)));
}

TEST(ManyTablesTest, ThirtyTablesLearnWithTheirOwnOptimizers) {
  constexpr int64_t kTables = 30;
  std::vector<Nest<FeatureConfig>> configs;
  std::vector<Features> features;
  for (int64_t i = 0; i < kTables; ++i) {
    configs.emplace_back(FeatureConfig{
        .table = make_table(
            {.vocabulary_size = i + 1,
             .dim = i % 7 + 1,
             .initializer = initializers::Zeros{},
             .optimizer = optim::SGD{.learning_rate = 0.01 * (i + 1)}})});
    features.emplace_back(at::full({i + 1}, i, at::kLong));
  }
  TPUEmbedding layer = layer_of(Nest<FeatureConfig>::list(configs));
  sum_of(layer->forward(Features::list(features))).backward();
  EXPECT_EQ(layer->iterations(), 1);
  int64_t i = 0;
  for (const auto& entry : layer->embedding_tables()) {
    at::Tensor expected = at::zeros({i + 1, i % 7 + 1});
    expected[i].fill_(-0.01 * (i + 1) * (i + 1));
    expect_close(entry.parameters, expected);
    ++i;
  }
}

}  // namespace tessera::test::optimizer_steps_test
