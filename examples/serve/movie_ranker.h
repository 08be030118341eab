// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/tessera.h>

#include <cstdint>
#include <vector>

/// Predicts whether a user gives a movie 4 stars or more. The table of users has keys, so
/// a user who appears during the training gets a row.
struct MovieRankerImpl : torch::nn::Module {
  explicit MovieRankerImpl(const MovieLens& data);

  /// Returns the logits. The features of the user may have one row beside those of many
  /// movies.
  torch::Tensor forward(const tessera::Features& features);  // [batch]

  tessera::TPUEmbedding embedding{nullptr};
  tessera::MLP tower{nullptr};
};
TORCH_MODULE(MovieRanker);

/// The features and the labels of some ratings.
struct RatingBatch {
  tessera::Features features = {};
  torch::Tensor is_liked = {};  // [batch], 0 or 1
};

/// The ratings in the order of time, with the movies that each user liked before.
class RatingStream {
 public:
  /// `data` must live longer than this object.
  explicit RatingStream(const MovieLens& data);

  int64_t size() const {
    return static_cast<int64_t>(ratings_.size());
  }
  /// Ratings [begin, end).
  RatingBatch batch(int64_t begin, int64_t end) const;

  /// One user and some movies, as for a request.
  tessera::Features request(int64_t user, const std::vector<int64_t>& movies)
      const;
  /// The last movies that the user liked.
  std::vector<int64_t> liked(int64_t user) const;

 private:
  struct Rated {
    MovieLens::Rating rating = {};
    int64_t liked_before = 0;  // the movies that the user had liked by then
  };

  std::vector<int64_t> history(int64_t user, int64_t liked_before) const;

  const MovieLens& data_;
  std::vector<Rated> ratings_;
  std::vector<std::vector<int64_t>> liked_;  // by user, in the order of time
};
