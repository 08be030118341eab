// SPDX-License-Identifier: Apache-2.0
// Batches that forward() refuses without any change, and ids that it counts.
#include "tests/layers/layer_test_util.h"

namespace tessera::test::refused_batch_test {

class RefusedBatchTest : public testing::TestWithParam<Strategy> {
 protected:
  static TPUEmbedding layer(Nest<FeatureConfig> features) {
    return layer_of(
        std::move(features),
        optim::SGD{.learning_rate = 1.0},
        {.strategy = GetParam()});
  }
};

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    RefusedBatchTest,
    strategies(),
    strategy_name);

TEST_P(RefusedBatchTest, ErrorsForAnotherNestNameThePath) {
  const auto table = numbered_table("t", 4, 2);
  auto embedding = layer(
      {{"user", FeatureConfig{.table = table}},
       {"seen",
        Nest<FeatureConfig>::list(
            {FeatureConfig{.table = table}, FeatureConfig{.table = table}})}});
  const at::Tensor ids = int64s({1});
  EXPECT_VALUE_ERROR(
      (embedding->forward({{"user", ids}})), "missing entry 'seen'. Got: user");
  EXPECT_VALUE_ERROR(
      (embedding->forward({{"user", ids}, {"seen", Features::list({ids})}})),
      "[features 'seen'] expected a list of 2 entries, but got 1");
  EXPECT_VALUE_ERROR(
      (embedding->forward(
          {{"user", ids},
           {"seen", Features::list({ids, Features{{"a", ids}}})}})),
      "[features 'seen/1'] expected a value here, but got a map");
  EXPECT_VALUE_ERROR(
      (embedding->forward(
          {{"user", ids}, {"seen", Features::list({ids, ids})}},
          {{"age", std::nullopt}})),
      "[weights] unexpected entry 'age'. Known: user, seen");
}

TEST_P(RefusedBatchTest, ErrorsForAnotherNestOfWeightsNameThePath) {
  const FeatureConfig config{.table = numbered_table("t", 4, 2)};
  auto embedding = layer(
      {{"user", config},
       {"seen", Nest<FeatureConfig>::list({config, config})}});
  const RaggedFeature ids = ragged({{1}});
  const Features features{{"user", ids}, {"seen", Features::list({ids, ids})}};
  EXPECT_VALUE_ERROR(
      (embedding->forward(features, {{"uesr", floats({1}, {2})}})),
      "[weights] unexpected entry 'uesr'. Known: user, seen");
  EXPECT_VALUE_ERROR(
      (embedding->forward(
          features,
          {{"user", std::nullopt},
           {"seen",
            Weights::list({std::nullopt, std::nullopt, std::nullopt})}})),
      "[weights 'seen'] expected a list of 2 entries, but got 3");
  EXPECT_VALUE_ERROR(
      (embedding->forward(
          features, {{"user", std::nullopt}, {"seen", std::nullopt}})),
      "[weights 'seen'] expected a list here, but got a value");
  const Weights none = Weights::list({});
  EXPECT_VALUE_ERROR(
      embedding->forward(features, none),
      "[weights] expected a map here, but got a list");
  const at::NoGradGuard no_grad;
  EXPECT_VALUE_ERROR(
      (embedding->forward({{"user", ids}}, none)),
      "[weights] expected a map here, but got a list");
  auto list = layer(Nest<FeatureConfig>::list({config, config}));
  EXPECT_EQ(
      list->forward(Features::list({ids, ids}), none).flatten().size(), 2U);
}

TEST_P(RefusedBatchTest, ARefusedBatchChangesNothing) {
  const auto table = numbered_table("t", 4, 2);
  auto embedding = layer(
      {{"a", FeatureConfig{.table = table, .out_of_range = OutOfRange::kZero}},
       {"b", FeatureConfig{.table = table}}});
  const auto before = tables_of(embedding);
  const at::Tensor ids_of_a = int64s({1, 77});  // 77 looks up zeros
  const auto forward = [&](const Feature& b, const Weights& weights = {}) {
    embedding->forward({{"a", ids_of_a}, {"b", b}}, weights);
  };
  const RaggedFeature ids = ragged({{1, 2}, {3}});
  const auto weights = [](const Feature& b) {
    return Weights{{"a", std::nullopt}, {"b", b}};
  };

  expect_refusals<Feature, c10::TypeError>(
      {{floats({1, 2}),
        "[feature 'b'] ids must be int32 or int64, but got Float"},
       {at::Tensor(),
        "[feature 'b'] ids must be a tensor, but is an undefined tensor"},
       {RaggedFeature{ids.values, floats({0, 2, 3})},
        "[feature 'b'] row_splits must be int32 or int64, but got Float"}},
      [&](const Feature& x) { forward(x); });
  EXPECT_VALUE_ERROR(
      forward(RaggedFeature{ids.values, int64s({0, 2})}),
      "[feature 'b'] row_splits must end with the number of values, 3");
  EXPECT_VALUE_ERROR(
      forward(SparseFeature{
          int64s({0, 2}).view({1, 2}), int64s({1}), int64s({1, 2})}),
      "[feature 'b'] indices must lie inside dense_shape");
  EXPECT_VALUE_ERROR(
      forward(int64s({1}), weights(floats({1}))),
      "[feature 'b'] weights are given, but the feature is dense");
  expect_refusals<Feature, c10::TypeError>(
      {{int64s({1, 2, 3}),
        "[feature 'b'] weights must be of a floating-point type, but got Long"},
       {sparse({{1, 2}, {3}}, 2),
        "[feature 'b'] weights must be ragged like the feature"}},
      [&](const Feature& x) { forward(ids, weights(x)); });
  EXPECT_INDEX_ERROR(
      forward(ragged({{1}, {2, 4}})),
      "[feature 'b'] table 't' has ids in [0, 4), but got 4 at position 2");

  expect_same_tables(embedding, before);
  EXPECT_EQ(embedding->out_of_range_count(), 0);
  EXPECT_EQ(embedding->iterations(), 0);
  const auto activations = embedding->forward(
      {{"a", ids_of_a}, {"b", ids}}, weights(floats({1, 1, 2})));
  expect_close(activations["a"], floats({2, 2}, {1, 1, 0, 0}));
  expect_close(activations["b"], floats({2, 2}, {3, 3, 6, 6}));
  EXPECT_EQ(embedding->out_of_range_count(), 1);
}

TEST_P(RefusedBatchTest, ABadIdChangesNothing) {
  auto embedding = layer(
      {{"good",
        FeatureConfig{
            .table = numbered_table("t", 4, 2),
            .out_of_range = OutOfRange::kZero}},
       {"bad", FeatureConfig{.table = numbered_table("u", 4, 2)}}});
  const auto before = tables_of(embedding);
  EXPECT_INDEX_ERROR(
      (embedding->forward({{"good", int64s({99})}, {"bad", int64s({4})}})),
      "[feature 'bad'] table 'u' has ids in [0, 4), but got 4 at position 0");
  expect_same_tables(embedding, before);
  EXPECT_EQ(embedding->out_of_range_count(), 0);
  embedding->forward({{"good", int64s({99, -1})}, {"bad", int64s({3, 0})}});
  EXPECT_EQ(embedding->out_of_range_count(), 2);
}

TEST_P(RefusedBatchTest, OutOfRangeIdsAreCountedOverAllForwards) {
  const auto table = numbered_table("t", 4, 1);
  const FeatureConfig zero{.table = table, .out_of_range = OutOfRange::kZero};
  FeatureConfig sequence = zero;
  sequence.max_sequence_length = 2;
  auto embedding =
      layer({{"dense", zero}, {"bags", zero}, {"sequence", sequence}});
  // Dropped ids are not counted, such as the negative ids of bags. Neither are ids
  // past the end of a sequence.
  const Features batch{
      {"dense", int64s({-1, 4, 3})},
      {"bags", ragged({{1, 9}, {-1}, {9, 9}})},
      {"sequence", ragged({{5, 1, 9}, {-1, 2}, {}})}};
  const auto activations = embedding->forward(batch);
  expect_close(activations["dense"], floats({3, 1}, {0, 0, 3}));
  expect_close(activations["bags"], floats({3, 1}, {1, 0, 0}));
  expect_close(activations["sequence"], floats({3, 2, 1}, {0, 1, 0, 2, 0, 0}));
  EXPECT_EQ(embedding->out_of_range_count(), 2 + 3 + 1);
  embedding->forward(batch);
  EXPECT_EQ(embedding->out_of_range_count(), 2 * (2 + 3 + 1));
}

}  // namespace tessera::test::refused_batch_test
