// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/movielens/options.h"
#include "examples/movielens/rating_data.h"

#include <tessera/tessera.h>

/// The model of movielens:
///
///   stars = mean + biases + <user, movie> + tower(user, movie, user * movie)
///
/// where `user` is the sum of the user's embeddings and `movie` that of the movie's.
struct RaterImpl : torch::nn::Module {
  RaterImpl(
      const RatingData& data,
      const Options& options,
      const tessera::Strategy& strategy = tessera::Strategy::fused());

  struct Output {
    torch::Tensor stars = {};  // [batch], not limited to [1, 5]
    torch::Tensor penalty = {};  // sum of the squared lengths of the embeddings
  };

  Output rate(
      const tessera::Features& features,
      const tessera::Weights& weights);

  /// Returns only the stars.
  torch::Tensor forward(
      const tessera::Features& features,
      const tessera::Weights& weights);

  tessera::TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
  double mean = 0.0;
};
TORCH_MODULE(Rater);

/// The number of steps of the whole training.
int64_t number_of_steps(const RatingData& data, const Options& options);
