// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of the layers of well-known models, which
// check_docs.cmake compares with them.
#include <tessera/tessera.h>

#include "tests/test_util.h"

namespace tessera::reference_models_test {

class ModelsReferenceTest : public testing::Test {
 protected:
  TPUEmbedding embedding_of(int64_t dim) {
    const auto users =
        make_table({.name = "users", .vocabulary_size = 1000, .dim = dim});
    const auto movies =
        make_table({.name = "movies", .vocabulary_size = 500, .dim = dim});
    return TPUEmbedding(TPUEmbeddingOptions{
        .features = {
            {"user", FeatureConfig{.table = users}},
            {"movie", FeatureConfig{.table = movies}},
            {"history",
             FeatureConfig{.table = movies, .max_sequence_length = 20}}}});
  }

  const Features features{
      {"user", test::int64s({1, 2})},
      {"movie", test::int64s({3, 4})},
      {"history",
       RaggedFeature::from_lengths(
           test::int64s({5, 6, 7}),
           test::int64s({2, 1}))}};
  const std::vector<int64_t> one_column{2, 1};
};

TEST_F(ModelsReferenceTest, MatrixFactorization) {
  const Features pairs{
      {"user", test::int64s({1, 2})}, {"movie", test::int64s({3, 4})}};
  // snippet: MatrixFactorizationImpl
  const auto users =
      make_table({.name = "users", .vocabulary_size = 1000, .dim = 1 + 16});
  const auto movies =
      make_table({.name = "movies", .vocabulary_size = 500, .dim = 1 + 16});
  torch::nn::Sequential model(
      TPUEmbedding(TPUEmbeddingOptions{
          .features =
              {{"user", FeatureConfig{.table = users}},
               {"movie", FeatureConfig{.table = movies}}}}),
      MatrixFactorization(MatrixFactorizationOptions{.global_mean = 3.5}));
  const auto stars = model->forward(pairs);  // [batch, 1]
  // end snippet
  EXPECT_EQ(stars.sizes(), one_column);
}

TEST_F(ModelsReferenceTest, FactorizationMachine) {
  const TPUEmbedding embedding = embedding_of(17);
  // snippet: FactorizationMachineImpl
  torch::nn::Sequential model(
      embedding,  // its tables have the dim 1 + 16
      FactorizationMachine(FactorizationMachineOptions{.use_bias = true}));
  const auto logits = model->forward(features);  // [batch, 1]
  // end snippet
  EXPECT_EQ(logits.sizes(), one_column);
}

TEST_F(ModelsReferenceTest, DeepFM) {
  TPUEmbedding embedding = embedding_of(17);
  // snippet: DeepFMImpl
  DeepFM model(DeepFMOptions{.hidden_units = {64, 32}});
  const auto logits = model->forward(embedding->forward(features));
  // end snippet
  EXPECT_EQ(logits.sizes(), one_column);
}

TEST_F(ModelsReferenceTest, Dice) {
  const auto x = torch::randn({2, 8});
  // snippet: DiceImpl
  torch::nn::Sequential tower(
      torch::nn::Linear(8, 4),
      Dice(DiceOptions{.momentum = 0.01}),
      torch::nn::Linear(4, 1));
  const auto logits = tower->forward(x);
  // end snippet
  EXPECT_EQ(logits.sizes(), one_column);
}

TEST_F(ModelsReferenceTest, DINAttention) {
  TPUEmbedding embedding = embedding_of(16);
  // snippet: DINAttentionImpl
  DINAttention attention(
      DINAttentionOptions{.activation = DINActivation::kPRelu});
  const auto rows = embedding->forward(features);
  const auto interest = attention->forward(
      rows["movie"],
      rows["history"],  // [batch, 20, dim]
      history_lengths(features["history"]));
  // end snippet
  EXPECT_EQ(interest.sizes(), (std::vector<int64_t>{2, 16}));
}

TEST_F(ModelsReferenceTest, MMoE) {
  const auto x = torch::randn({2, 8});
  const auto clicks = torch::ones({2, 1});
  const auto purchases = torch::zeros({2, 1});
  // snippet: MMoEImpl
  MMoE model(MMoEOptions{
      .tasks = {"click", "purchase"},
      .num_experts = 8,
      .expert_units = {64, 32},
      .tower_units = {16, 1}});
  const auto logits = model->forward(x);
  const auto loss =
      torch::binary_cross_entropy_with_logits(logits["click"], clicks) +
      torch::binary_cross_entropy_with_logits(logits["purchase"], purchases);
  // end snippet
  EXPECT_EQ(loss.dim(), 0);
}

TEST_F(ModelsReferenceTest, FoldIn) {
  const auto item_vectors = torch::randn({500, 16});
  // snippet: FoldIn
  // The vectors of 500 trained items, and two new users: 7, 8, 9, and 3.
  const FoldIn fold_in(
      item_vectors, {.regularization = 1.0, .catalogue_confidence = 0.1});
  const RaggedFeature histories{
      .values = torch::tensor({7, 8, 9, 3}),
      .row_splits = torch::tensor({0, 3, 4})};
  const auto users = fold_in.solve(histories);  // [2, dim]

  const auto index = make_exact_index(item_vectors);
  const TopK found = index->search(users, 10, histories);
  // end snippet
  EXPECT_EQ(users.sizes(), torch::IntArrayRef({2, 16}));
  EXPECT_EQ(found.ids.sizes(), torch::IntArrayRef({2, 10}));
}

TEST_F(ModelsReferenceTest, FoldInOfRatings) {
  const auto movie_rows = torch::randn({500, 1 + 16});
  const double mean = 3.5;
  // snippet: FoldInOfRatings
  // The rows [500, 1 + 16] of movies in MatrixFactorization begin with their biases.
  const auto biases = movie_rows.select(1, 0) + mean;
  auto factors = movie_rows.clone();
  factors.select(1, 0).fill_(1.0);  // stands for the bias of the user
  const FoldIn fold_in(
      factors,
      {.regularization = 0.1, .regularization_per_item = 0.05},
      biases);
  // The row of a new user, who gave 5, 3 and 4 stars.
  const auto rows = fold_in.solve(
      {.values = torch::tensor({7, 8, 9}), .row_splits = torch::tensor({0, 3})},
      {.targets = torch::tensor({5.0, 3.0, 4.0})});
  const auto stars = rows.matmul(factors.t()) + biases;  // [1, 500]
  // end snippet
  MatrixFactorization model(MatrixFactorizationOptions{.global_mean = mean});
  test::expect_close(
      stars.squeeze(0),
      model->forward({rows.expand({500, 17}), movie_rows}).squeeze(1),
      1e-5,
      1e-5);
}

TEST_F(ModelsReferenceTest, ItemScorer) {
  const auto histories = RaggedFeature::from_lengths(
      torch::randint(500, {600}, torch::kLong),
      torch::full({100}, 6, torch::kLong));
  const auto clicks = torch::bincount(histories.values, {}, 500);
  // snippet: ItemScorer
  // From the items of all users.
  const auto scorer = make_ease(histories, {.num_items = 500});
  const auto scores = scorer->scores(histories, 0.9);  // [batch, 500]
  const Recommender recommender(
      nullptr,
      {.items = [&] { return RecommenderItems{.popularity = clicks}; },
       .scores =
           [&](const RaggedFeature& rows) {
             return scorer->scores(rows, 0.9);
           }});
  // end snippet
  EXPECT_EQ(scores.sizes(), torch::IntArrayRef({100, 500}));
  EXPECT_EQ(
      recommender.recommend({{"item", histories}}).ids.sizes(),
      torch::IntArrayRef({100, 10}));
}

}  // namespace tessera::reference_models_test
