// SPDX-License-Identifier: Apache-2.0
#include <tessera/engine/serving_lookup.h>

#include "tests/features/feature_builders.h"

namespace tessera::test::serving_lookup_test {

class ServingLookupTest : public testing::Test {
 protected:
  TablePtr users_ = make_table(
      {.name = "users",
       .vocabulary_size = 4,
       .dim = 2,
       .combiner = Combiner::kSum});
  TablePtr movies_ =
      make_table({.name = "movies", .vocabulary_size = 3, .dim = 1});
  Nest<FeatureConfig> configs_{
      {"user", FeatureConfig{.table = users_}},
      {"history",
       Nest<FeatureConfig>::list(
           {FeatureConfig{.table = movies_},
            FeatureConfig{.table = movies_, .max_sequence_length = 2}})}};
  at::Tensor user_rows_ = at::arange(8, at::kFloat).view({4, 2});
  at::Tensor movie_rows_ = floats({5, 6, 8}).view({3, 1});

  EmbeddingTables tables() const {
    return EmbeddingTables(
        {{.config = movies_, .parameters = movie_rows_},
         {.config = users_, .parameters = user_rows_}});
  }
};

TEST_F(ServingLookupTest, LooksUpTheUsersOwnTensors) {
  const auto activations = serving_embedding_lookup(
      {{"user", int64s({3, 0})},
       {"history",
        Features::list({ragged({{0, 1}, {}}), ragged({{2, 1, 0}, {1}})})}},
      {},
      tables(),
      configs_);
  expect_close(activations["user"], floats({6, 7, 0, 1}).view({2, 2}));
  expect_close(activations.at("history")[0], floats({5.5F, 0}).view({2, 1}));
  expect_close(
      activations.at("history")[1], floats({8, 6, 6, 0}).view({2, 2, 1}));
}

TEST_F(ServingLookupTest, TakesSomeOfTheFeaturesInAnyOrder) {
  const auto activations = serving_embedding_lookup(
      {{"history", Features::list({sparse({{0}}, 1), ragged({{2}})})}},
      {},
      tables(),
      configs_);
  EXPECT_EQ(activations.size(), 1);
  expect_close(activations.at("history")[0], floats({5}).view({1, 1}));
  const auto reversed = serving_embedding_lookup(
      {{"history", Features::list({ragged({{0}}), ragged({{2}})})},
       {"user", int64s({1})}},
      {},
      tables(),
      configs_);
  EXPECT_EQ(
      reversed.paths(),
      (std::vector<std::string>{"history/0", "history/1", "user"}));
}

TEST_F(ServingLookupTest, AppliesWeights) {
  const Features features{{"user", ragged({{1, 3}, {2}})}};
  const auto activations = serving_embedding_lookup(
      features, {{"user", Feature(floats({.5F, -1, 2}))}}, tables(), configs_);
  expect_close(activations["user"], floats({-5, -5.5F, 8, 10}).view({2, 2}));
  EXPECT_VALUE_ERROR(
      serving_embedding_lookup(
          {{"user", int64s({1})}},
          {{"user", Feature(floats({1}))}},
          tables(),
          configs_),
      "[feature 'user'] weights are given, but the feature is dense");
  EXPECT_VALUE_ERROR(
      serving_embedding_lookup(
          features, {{"movie", std::nullopt}}, tables(), configs_),
      "[weights] unexpected entry 'movie'");
}

TEST_F(ServingLookupTest, TakesSparseFeaturesAndOutputShapes) {
  const SparseFeature ids = sparse({{1, 3}, {2}}, 2);
  expect_close(
      serving_embedding_lookup(
          {{"user", ids}},
          {{"user",
            Feature(SparseFeature{
                ids.indices, floats({.5F, -1, 2}), ids.dense_shape})}},
          tables(),
          configs_)["user"],
      floats({-5, -5.5F, 8, 10}).view({2, 2}));
  EXPECT_TYPE_ERROR(
      serving_embedding_lookup(
          {{"user", ids}},
          {{"user", Feature(RaggedFeature{floats({1, 1, 1}), int64s({0, 3})})}},
          tables(),
          configs_),
      "[feature 'user'] weights must be sparse like the feature");
  const FeatureConfig sequence{.table = movies_, .max_sequence_length = 2};
  expect_close(
      serving_embedding_lookup(
          sparse({{2, 1, 0}, {1}}, 3), {}, tables(), sequence)
          .leaf(),
      floats({8, 6, 6, 0}).view({2, 2, 1}));
  FeatureConfig shaped{.table = users_};
  const auto rows = ragged({{0}, {1, 1}, {}, {3}});
  const auto look_up = [&](std::vector<int64_t> shape) {
    shaped.output_shape = std::move(shape);
    return serving_embedding_lookup(rows, {}, tables(), shaped).leaf();
  };
  expect_close(
      look_up({2, 2}), floats({0, 1, 4, 6, 0, 0, 6, 7}).view({2, 2, 2}));
  EXPECT_EQ(look_up({2, 4}).sizes(), at::IntArrayRef({2, 4, 2}));
  EXPECT_VALUE_ERROR(
      look_up({3}),
      "the product of output_shape must be a multiple of the number of rows");
}

TEST_F(ServingLookupTest, IsDifferentiableInTablesAndWeights) {
  user_rows_.requires_grad_(true);
  const at::Tensor weights = floats({.5F, 2, 4}).requires_grad_(true);
  const Features features{{"user", ragged({{1, 3}, {1}})}};
  const auto look_up = [&] {
    return serving_embedding_lookup(
        features, {{"user", Feature(weights)}}, tables(), configs_)["user"];
  };
  const at::Tensor activation = look_up();
  ASSERT_TRUE(activation.requires_grad());
  activation.sum().backward();
  expect_close(
      user_rows_.grad(), floats({0, 0, 4.5F, 4.5F, 0, 0, 2, 2}).view({4, 2}));
  expect_close(weights.grad(), floats({5, 13, 5}));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(look_up().requires_grad());
  expect_close(look_up(), activation);
}

TEST_F(ServingLookupTest, RefusesWhatDoesNotFit) {
  const auto look_up = [&](const Features& features) {
    return serving_embedding_lookup(features, {}, tables(), configs_);
  };
  EXPECT_VALUE_ERROR(
      look_up({{"nobody", int64s({0})}}),
      "[features] 'nobody' is not among the feature configs. Known: user, "
      "history");
  EXPECT_VALUE_ERROR(
      look_up({{"history", Features::list({ragged({{0}})})}}),
      "[features 'history'] expected a list of 2 here, as in the feature "
      "configs, but got a list of 1");
  EXPECT_VALUE_ERROR(
      look_up(int64s({0})), "expected a map here, as in the feature configs");
  EXPECT_INDEX_ERROR(look_up({{"user", int64s({4})}}), "[feature 'user']");
  EXPECT_VALUE_ERROR(
      serving_embedding_lookup(
          {{"user", int64s({0})}},
          {},
          EmbeddingTables({{.config = movies_, .parameters = movie_rows_}}),
          configs_),
      "[feature 'user'] its table 'users' must be one of the given tables, but "
      "none of them has its TablePtr");
  for (const at::Tensor& wrong :
       {at::Tensor(),
        at::zeros({4, 3}),
        at::zeros({4, 2}, at::kDouble),
        at::zeros({2, 4}).t()}) {
    user_rows_ = wrong;
    EXPECT_VALUE_ERROR(
        look_up({{"user", int64s({0})}}),
        "the tensor of its table 'users' must be a contiguous cpu tensor of "
        "float32 [4, 2]");
  }
  const std::vector<std::pair<at::Tensor, std::string>> of_this_shape{
      {at::zeros({2, 4}).t(), "Float of shape [4, 2] with strides [1, 4]"},
      {at::zeros({4, 2}).to_sparse(), "Float of shape [4, 2] in Sparse layout"},
      {at::_neg_view(at::zeros({4, 2})), "[4, 2] as a negative view"},
      {at::empty({4, 2}, at::TensorOptions(at::kMeta)), "[4, 2] on meta"}};
  for (const auto& [wrong, text] : of_this_shape) {
    user_rows_ = wrong;
    EXPECT_VALUE_ERROR(look_up({{"user", int64s({0})}}), text);
  }
}

TEST_F(ServingLookupTest, AnEmptyBatchGivesEmptyActivations) {
  const auto activations = serving_embedding_lookup(
      {{"user", at::zeros({0}, at::kLong)}}, {}, tables(), configs_);
  EXPECT_EQ(activations["user"].sizes(), at::IntArrayRef({0, 2}));
  EXPECT_TRUE(
      serving_embedding_lookup(Features(), {}, tables(), configs_).empty());
}

TEST_F(ServingLookupTest, DoesNotRoundToBuckets) {
  users_ = make_table(
      {.name = "users",
       .vocabulary_size = 4,
       .dim = 2,
       .quantization =
           QuantizationConfig{.num_buckets = 2, .lower = 0, .upper = 1}});
  configs_ = {{"user", FeatureConfig{.table = users_}}};
  const auto activations =
      serving_embedding_lookup({{"user", int64s({3})}}, {}, tables(), configs_);
  expect_close(activations["user"], floats({6, 7}).view({1, 2}));
}

}  // namespace tessera::test::serving_lookup_test
