// SPDX-License-Identifier: Apache-2.0
// The code in docstrings of layer_holder.h and table_activity.h.
#include <tessera/layers/layer_holder.h>
#include <tessera/layers/mlp.h>
#include <tessera/layers/training/fit.h>
#include <tessera/layers/training/table_activity.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <torch/optim/sgd.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <vector>

namespace tessera {
namespace reference_traps_test {

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
  const auto activity =
      std::make_shared<TableActivity>(std::vector<TPUEmbedding>{embedding});
  const History history =
      fit(batches, step, {.epochs = 2, .callbacks = {activity}});
  const double moved = history["moved_users"].back();
  std::cout << to_string(activity->measure());
  // end snippet
  EXPECT_GT(moved, 0.0);
}

}  // namespace reference_traps_test
}  // namespace tessera
