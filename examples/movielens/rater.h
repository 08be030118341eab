// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/movielens/options.h"
#include "examples/movielens/rating_data.h"

#include <tessera/tessera.h>

/// The model of movielens:
///
///   score       = <user, movie> + tower(user, movie, user * movie) + biases + pairs
///   P(stars<=k) = sigmoid(threshold_k - 1.8 score)    for k = 1, ..., 4
///   stars       = the mean of this distribution
///
/// where `user` is the sum of the user's embeddings and `movie` that of the movie's.
/// `pairs` is the sum of one number for each pair of the user and another rater of the
/// movie, divided by the root of their count. At a score of 0, the thresholds give the
/// shares of the stars in the training. The factor 1.8 makes a difference of 1 between
/// scores about one star.
struct RaterImpl : torch::nn::Module {
  RaterImpl(
      const RatingData& data,
      const Options& options,
      const tessera::Strategy& strategy = tessera::Strategy::fused());

  struct Output {
    torch::Tensor stars = {};  // [batch], in (1, 5)
    torch::Tensor at_most =
        {};  // [batch, 4], the probability of 1, ..., 4 stars or less
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
  torch::Tensor thresholds;  // [4]
};
TORCH_MODULE(Rater);

/// The number of steps of the whole training.
int64_t number_of_steps(const RatingData& data, const Options& options);
