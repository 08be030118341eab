// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/two_tower/sequences.h"

#include <tessera/tessera.h>

#include <cstdint>

/// How a model is built and trained.
struct Settings {
  bool only_ids = false;
  int64_t dim = 64;
  double dropout = 0.0;
  bool unit_length = false;
  double temperature = 1.0;
  double penalty = 0.0;  // on the squared lengths of the towers' sums
  double learning_rate = 0.003;
};

/// A tower that sums the embeddings of all features.
struct TowerImpl : torch::nn::Module {
  TowerImpl(tessera::TPUEmbeddingOptions options, const Settings& settings);

  struct Output {
    torch::Tensor vectors = {};  // [batch, dim]
    torch::Tensor squares =
        {};  // their squared lengths before dropout, added up
  };

  Output forward(const TowerInputs& inputs);

  tessera::TPUEmbedding embedding{nullptr};
  torch::nn::Dropout dropout{nullptr};
  bool is_unit_length = false;
};
TORCH_MODULE(Tower);

/// score = <tower(user), tower(movie)>
struct TwoTowersImpl : torch::nn::Module {
  /// The learning rate falls to zero in `steps` steps.
  TwoTowersImpl(
      const Sequences& sequences,
      const Settings& settings,
      uint64_t seed,
      int64_t steps);

  struct Output {
    torch::Tensor loss = {};  // the loss of the retrieval
    torch::Tensor objective = {};  // to minimise: the loss plus a penalty
  };

  Output forward(const Sequences& sequences, const Examples& examples);

  // The vectors of a trained model for serving: [examples, dim] and [movies, dim].
  torch::Tensor user_vectors(
      const Sequences& sequences,
      const Examples& examples);
  torch::Tensor movie_vectors(const Sequences& sequences);

  Tower user{nullptr};
  Tower movie{nullptr};
  tessera::Retrieval retrieval{nullptr};
  bool only_ids = false;
  double penalty = 0.0;
};
TORCH_MODULE(TwoTowers);
