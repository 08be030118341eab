// SPDX-License-Identifier: Apache-2.0
// The code in docstrings of layer_holder.h and table_activity.h.
#include <tessera/tessera.h>
#include <torch/nn/functional/loss.h>

#include "tests/test_util.h"

namespace tessera::reference_traps_test {

TEST(ReferenceTrapsTest, LayerHolder) {
  // snippet: LayerHolder
  MLP tower({.units = {64, 1}});
  // end snippet
  EXPECT_EQ(tower->options().units.size(), 2);
}

TEST(ReferenceTrapsTest, TableActivity) {
  using namespace training;  // NOLINT(google-build-using-namespace)
  const auto users =
      make_table({.name = "users", .vocabulary_size = 10, .dim = 2});
  TPUEmbedding embedding(
      {{"user", FeatureConfig{.table = users}}},
      optim::Adagrad{.learning_rate = 0.1});
  torch::optim::SGD optimizer(embedding->parameters(), 0.1);
  const std::vector<at::Tensor> batches{at::tensor({1, 2, 3})};
  const auto step = make_train_step(optimizer, [&](const at::Tensor& ids) {
    return embedding->forward({{"user", ids}})["user"].sum();
  });
  // snippet: TableActivity
  const auto activity = std::make_shared<TableActivity>(
      TableModules{embedding}, /*max_rows=*/1000);
  const History history =
      fit(batches, step, {.epochs = 2, .callbacks = {activity}});
  const double moved = history["moved_users"].back();
  for (const TableMovement& found : activity->measure()) {
    std::cout << found.table << " " << found.accumulator_growth << "\n";
  }
  std::cout << to_string(activity->measure());  // the same as a table
  // end snippet
  EXPECT_GT(moved, 0.0);
}

TEST(ReferenceTrapsTest, TwoTowersShareALayer) {
  const auto table = [](const char* name) {
    return make_table({.name = name, .vocabulary_size = 50, .dim = 4});
  };
  TPUEmbedding embedding(
      {{"user", FeatureConfig{.table = table("users")}},
       {"movie", FeatureConfig{.table = table("movies")}}},
      optim::Adagrad{.learning_rate = 0.1});
  const at::Tensor user_ids = at::tensor({1, 2}, at::kLong);
  const at::Tensor movie_ids = at::tensor({3, 4}, at::kLong);
  // snippet: two_towers
  const auto users = embedding->forward_partial({{"user", user_ids}})["user"];
  const auto movies =
      embedding->forward_partial({{"movie", movie_ids}})["movie"];
  const auto scores = torch::matmul(users, movies.t());
  torch::nn::functional::cross_entropy(scores, torch::arange(2)).backward();
  // end snippet
  EXPECT_EQ(embedding->iterations(), 1);
}

}  // namespace tessera::reference_traps_test
