// SPDX-License-Identifier: Apache-2.0
// Lookups of some of the features, in training and without gradients.
#include <tessera/layers/partial_tpu_embedding.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::forward_partial_test {

const Feature kUsers = int64s({1, 2});
const Feature kMovies = int64s({3, 0});

Nest<FeatureConfig> features() {
  return features_of(
      {{"user", numbered_table("users", 4, 2)},
       {"movie", numbered_table("movies", 5, 2)}});
}

TPUEmbedding layer_on(const Strategy& strategy) {
  return layer_of(
      features(), optim::SGD{.learning_rate = 0.1}, {.strategy = strategy});
}

class ForwardPartialTest : public testing::TestWithParam<Strategy> {
 protected:
  TPUEmbedding layer = layer_on(GetParam());
  // Updates the tables of Strategy::host() and padded().
  torch::optim::SGD optimizer{layer->parameters(), 0.1};

  void train(const at::Tensor& loss) {
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
};

TEST_P(ForwardPartialTest, TwoTowersTrainAsWithOneForward) {
  auto other = layer_on(GetParam());
  torch::optim::SGD other_optimizer(other->parameters(), 0.1);
  const auto both = other->forward({{"user", kUsers}, {"movie", kMovies}});
  (both["user"] * both["movie"]).sum().backward();
  other_optimizer.step();

  const auto user = layer->forward_partial({{"user", kUsers}})["user"];
  const auto movie = layer->forward_partial({{"movie", kMovies}})["movie"];
  train((user * movie).sum());
  expect_same_tables(layer, tables_of(other));
  EXPECT_EQ(layer->iterations(), other->iterations());
  // Row 1 of the users has the gradient of row 3 of the movies.
  expect_close(
      layer->embedding_tables()["users"],
      floats({4, 2}, {0, 0, 0.7F, 0.7F, 2, 2, 3, 3}));
}

TEST_P(ForwardPartialTest, OtherTablesStayAsTheyAre) {
  const auto before = tables_of(layer);
  train(layer->forward_partial({{"movie", kMovies}})["movie"].sum());
  const auto after = tables_of(layer);
  EXPECT_TENSOR_EQ(after[0], before[0]);
  EXPECT_FALSE(at::equal(after[1], before[1]));
}

TEST_P(ForwardPartialTest, TheVectorsOfAllItemsNeedNoUsers) {
  const auto movies =
      layer->forward_partial({{"movie", at::arange(5)}})["movie"];
  expect_close(movies.detach(), floats({5, 2}, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4}));
}

TEST_P(ForwardPartialTest, KeepsTheNestAndTheOrderOfTheRequest) {
  const auto all =
      layer->forward_partial({{"movie", kMovies}, {"user", kUsers}});
  EXPECT_EQ(all.paths(), (std::vector<std::string>{"user", "movie"}));
  EXPECT_TRUE(layer->forward_partial(Features()).empty());
}

TEST_P(ForwardPartialTest, ErrorsNameMissingAndUnknownFeatures) {
  const auto before = tables_of(layer);
  EXPECT_VALUE_ERROR(
      layer->forward({{"movie", kMovies}}),
      "missing entry 'user'. Got: movie.");
  EXPECT_VALUE_ERROR(
      layer->forward({{"movie", kMovies}}),
      "forward_partial() takes some of them in training, too.");
  EXPECT_VALUE_ERROR(
      layer->forward_partial({{"movies", kMovies}}),
      "'movies' is not among the feature configs. Known: user, movie.");
  EXPECT_VALUE_ERROR(
      (layer->forward_partial({{"movie", kMovies}, {"users", kUsers}})),
      "'users'");
  EXPECT_TYPE_ERROR(
      layer->forward_partial({{"movie", at::Tensor()}}), "[feature 'movie']");
  EXPECT_INDEX_ERROR(
      layer->forward_partial({{"movie", int64s({5})}}), "[feature 'movie']");
  expect_same_tables(layer, before);
  EXPECT_EQ(layer->iterations(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies,
    ForwardPartialTest,
    strategies(),
    strategy_name);

TEST(ForwardPartialLayersTest, AFeatureThatIsLeftOutGivesNoWarning) {
  auto layer = layer_on(Strategy::fused());
  const Warnings warnings;
  layer->forward_partial({{"movie", kMovies}})["movie"].sum().backward();
  EXPECT_TRUE(warnings.texts.empty());
}

TEST(ForwardPartialLayersTest, PartialTPUEmbeddingLooksUpOneOfItsHalves) {
  PartialTPUEmbedding layer(PartialTPUEmbeddingOptions{
      .features = features(),
      .optimizer = optim::SGD{.learning_rate = 0.1},
      .size_threshold = 4});  // the users are parameters
  for (const char* name : {"user", "movie"}) {
    const auto rows = layer->forward_partial({{name, int64s({2})}});
    EXPECT_EQ(rows.paths(), (std::vector<std::string>{name}));
    expect_close(rows[name].detach(), floats({1, 2}, {2, 2}));
  }
  layer->forward_partial({{"movie", kMovies}})["movie"].sum().backward();
  EXPECT_EQ(layer->tpu_embedding()->iterations(), 1);
  EXPECT_VALUE_ERROR(
      layer->forward({{"movie", kMovies}}), "missing entry 'user'");
  EXPECT_VALUE_ERROR(
      layer->forward_partial({{"genre", kMovies}}),
      "'genre' is not among the feature configs. Known: user, movie.");
}

}  // namespace tessera::test::forward_partial_test
