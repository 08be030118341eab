// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/dense/concatenate.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <utility>

namespace tessera::test {

/// The example model of the pages, with users, movies and a history of movies.
struct RankerImpl : torch::nn::Module {
  explicit RankerImpl(Strategy strategy = Strategy::fused()) {
    const auto users =
        make_table({.name = "users", .vocabulary_size = 100, .dim = 8});
    const auto movies =
        make_table({.name = "movies", .vocabulary_size = 50, .dim = 8});
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"user", FeatureConfig{.table = users}},
                 {"movie", FeatureConfig{.table = movies}},
                 {"history", FeatureConfig{.table = movies}}},
            .optimizer = optim::Adagrad{.learning_rate = 0.1},
            .strategy = std::move(strategy)}));
    tower = register_module(
        "tower",
        torch::nn::Sequential(Concatenate(), torch::nn::Linear(24, 1)));
  }

  at::Tensor forward(const Features& features) {
    return tower->forward(embedding->forward(features)).squeeze(1);
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Ranker);

}  // namespace tessera::test
