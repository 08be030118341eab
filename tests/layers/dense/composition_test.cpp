// SPDX-License-Identifier: Apache-2.0
// The layer in models: users' modules, clones, Sequential.
#include <tessera/layers/dense/concatenate.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::composition_test {

TPUEmbeddingOptions two_features(Strategy strategy) {
  const auto table = make_table({.vocabulary_size = 6, .dim = 3});
  return {
      .features =
          {{"user", FeatureConfig{.table = table}},
           {"seen", FeatureConfig{.table = table, .max_sequence_length = 2}}},
      .optimizer = optim::Adagrad{.learning_rate = 0.05},
      .strategy = std::move(strategy)};
}

Features batch() {
  return {{"user", int64s({1, 2})}, {"seen", ragged({{3}, {2, 2, 5}})}};
}

// A user's model in LibTorch's style, whose reset() builds its modules.
struct RankerImpl : torch::nn::Cloneable<RankerImpl> {
  explicit RankerImpl(TPUEmbeddingOptions options)
      : options(std::move(options)) {
    RankerImpl::reset();
  }
  void reset() override {
    embedding = register_module("embedding", TPUEmbedding(options));
    tower = register_module("tower", torch::nn::Linear(9, 1));
  }
  at::Tensor forward(const Features& features) {
    return tower->forward(join->forward(embedding->forward(features)));
  }

  TPUEmbeddingOptions options;
  TPUEmbedding embedding{nullptr};
  Concatenate join;
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(Ranker);

class CompositionTest : public testing::TestWithParam<Strategy> {};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    CompositionTest,
    strategies(),
    strategy_name);

// Makes one training step.
template <class Model>
void train_step(Model& model) {
  torch::optim::SGD optimizer(
      model->parameters(), torch::optim::SGDOptions(0.1));
  optimizer.zero_grad();
  model->forward(batch()).square().sum().backward();
  optimizer.step();
}

TEST_P(CompositionTest, AUserModelTrainsDenseWeightsAndTables) {
  Ranker model(two_features(GetParam()));
  const bool is_fused = GetParam() == Strategy::fused();
  EXPECT_EQ(
      model->named_parameters().keys(),
      (std::vector<std::string>{
          is_fused ? "embedding.virtual_variable" : "embedding.table_0",
          "tower.weight",
          "tower.bias"}));
  const auto tables = tables_of(model->embedding);
  const at::Tensor weight = model->tower->weight.detach().clone();
  const float before = model->forward(batch()).square().sum().item<float>();
  train_step(model);
  EXPECT_FALSE(at::equal(model->tower->weight, weight));
  EXPECT_FALSE(at::equal(tables_of(model->embedding)[0], tables[0]));
  EXPECT_LT(model->forward(batch()).square().sum().item<float>(), before);
  EXPECT_EQ(model->embedding->iterations(), is_fused ? 1 : 0);
}

TEST_P(CompositionTest, AModelOfAnotherDtypeTrains) {
  for (const torch::Dtype dtype : {torch::kDouble, torch::kBFloat16}) {
    Ranker model(two_features(GetParam()));
    model->to(dtype);
    model->to(torch::kCPU);
    EXPECT_EQ(model->tower->weight.scalar_type(), dtype);
    EXPECT_EQ(model->forward(batch()).scalar_type(), dtype);
    const auto tables = tables_of(model->embedding);
    train_step(model);
    EXPECT_FALSE(at::equal(tables_of(model->embedding)[0], tables[0]));
    EXPECT_EQ(tables_of(model->embedding)[0].scalar_type(), torch::kFloat);

    Ranker copy = clone_of(model);
    EXPECT_TENSOR_EQ(copy->forward(batch()), model->forward(batch()));

    // A load does not change the dtypes of dense weights and activations.
    std::stringstream archive;
    torch::save(model, archive);
    Ranker loaded(two_features(GetParam()));
    loaded->to(dtype);
    torch::load(loaded, archive);
    EXPECT_EQ(loaded->tower->weight.scalar_type(), dtype);
    EXPECT_TENSOR_EQ(loaded->forward(batch()), model->forward(batch()));
  }
}

TEST_P(CompositionTest, ACloneIsADeepCopy) {
  TPUEmbedding layer(two_features(GetParam()));
  layer->forward(batch())["user"].sum().backward();
  layer->parameters()[0].requires_grad_(false);
  layer->eval();
  TPUEmbedding copy = clone_of(layer);
  ASSERT_FALSE(copy.is_empty());
  EXPECT_EQ(copy->options(), layer->options());
  EXPECT_EQ(copy->iterations(), layer->iterations());
  EXPECT_FALSE(copy->is_training());
  EXPECT_FALSE(copy->parameters()[0].requires_grad());
  EXPECT_FALSE(copy->parameters()[0].is_alias_of(layer->parameters()[0]));
  EXPECT_EQ(saved(copy).size(), saved(layer).size());

  const auto before = tables_of(layer);
  expect_same_tables(copy, before);
  write_table(copy, "table_0", at::rand({6, 3}));
  expect_same_tables(layer, before);
}

TEST_P(CompositionTest, AModelsCloneIsIndependent) {
  Ranker model(two_features(GetParam()));
  train_step(model);
  Ranker copy = clone_of(model);
  const auto before = tables_of(model->embedding);
  expect_same_tables(copy->embedding, before);
  EXPECT_TENSOR_EQ(copy->tower->weight, model->tower->weight);
  EXPECT_EQ(copy->embedding->iterations(), model->embedding->iterations());
  EXPECT_TENSOR_EQ(copy->forward(batch()), model->forward(batch()));
  EXPECT_EQ(copy->parameters().size(), model->parameters().size());

  // Slots are copied, too. The second step depends on them.
  train_step(copy);
  expect_same_tables(model->embedding, before);
  train_step(model);
  expect_same_tables(copy->embedding, tables_of(model->embedding));
}

TEST(CloneTest, UpdatesOfTheOriginalDoNotReachTheClone) {
  TPUEmbedding layer(two_features(Strategy::fused()));
  const at::Tensor loss = layer->forward(batch())["user"].sum();
  TPUEmbedding copy = clone_of(layer);
  const auto before = tables_of(copy);
  loss.backward();
  EXPECT_EQ(layer->iterations(), 1);
  EXPECT_EQ(copy->iterations(), 0);
  expect_same_tables(copy, before);
  EXPECT_FALSE(copy->virtual_variable().grad().defined());
}

TEST_P(CompositionTest, SequentialRunsFromFeaturesToScores) {
  TPUEmbedding embedding(two_features(GetParam()));
  torch::nn::Sequential model(
      embedding, Concatenate(), torch::nn::Linear(9, 1));
  const Features features = batch();
  const at::Tensor scores = model->forward(features);
  EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{2, 1}));

  auto copy =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  EXPECT_TENSOR_EQ(copy->forward(features), scores);

  const auto before = tables_of(embedding);
  scores.sum().backward();
  for (auto& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.grad().defined());
  }
  if (GetParam() == Strategy::fused()) {
    EXPECT_FALSE(at::equal(tables_of(embedding)[0], before[0]));
  }
  EXPECT_TENSOR_EQ(copy->forward(features), scores);
}

TEST_P(CompositionTest, SequentialPassesWeightsOn) {
  const auto table = numbered_table("t", 6, 3);
  torch::nn::Sequential model(
      layer_of(
          features_of({{"seen", table}}),
          optim::SGD{},
          {.strategy = GetParam()}),
      Concatenate());
  const Features features{{"seen", ragged({{3}, {2, 5}})}};
  const at::Tensor weights = floats({2, 3, -1}).requires_grad_();
  const Weights nest{{"seen", weights}};
  const at::Tensor joined = model->forward(features, nest);
  expect_close(joined, floats({2, 3}, {6, 6, 6, 1, 1, 1}));
  joined.sum().backward();
  expect_close(weights.grad(), floats({9, 6, 15}));
}

TEST(ConcatenateTest, FlattensAndJoinsInTheOrderOfTheNest) {
  Concatenate join;
  const at::Tensor joined = join->forward(
      {{"b", floats({2, 1, 2}, {1, 2, 3, 4})}, {"a", floats({7, 8})}});
  expect_close(joined, floats({2, 3}, {1, 2, 7, 3, 4, 8}));
  EXPECT_VALUE_ERROR(
      (join->forward({{"a", floats({1, 2, 3})}, {"b", floats({1, 2})}})),
      "[Concatenate 'b'] all inputs must have the same batch size");
  EXPECT_VALUE_ERROR(
      join->forward({}),
      "[Concatenate] expected one activation or more, but got an empty nest. "
      "Pass at least one.");
  EXPECT_VALUE_ERROR(
      (join->forward({{"a", floats({1})}, {"b", at::Tensor()}})),
      "[Concatenate 'b'] expected an activation with a batch dimension, but "
      "got an undefined tensor");
  EXPECT_VALUE_ERROR(
      (join->forward({{"a", at::rand({})}})),
      "[Concatenate 'a'] expected an activation with a batch dimension, but "
      "got a scalar");
}

TEST(ConcatenateTest, TakesBatchesOfZeroRowsAndPassesGradientsBack) {
  Concatenate join;
  EXPECT_EQ(
      join->forward({{"a", at::rand({0, 2})}, {"b", at::rand({0, 3, 4})}})
          .sizes(),
      (std::vector<int64_t>{0, 14}));
  const at::Tensor activation = at::rand({2, 2, 2}).requires_grad_();
  const at::Tensor slopes = floats({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  (join->forward(activation) * slopes).sum().backward();
  expect_close(activation.grad(), slopes.view({2, 2, 2}));
}

}  // namespace tessera::test::composition_test
