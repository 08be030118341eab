// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/tessera.h>

#include <cstdint>
#include <string>
#include <vector>

/// The columns "title", "year" and "genres" of all movies. Those of one title count as one.
tessera::data::Columns movie_catalogue(const MovieLens& data);

/// Makes features from these columns, "user" and "liked", a list of titles.
tessera::data::FeaturePipeline movie_pipeline(const MovieLens& data);

/// Predicts whether a user gives a movie 4 stars or more.
struct MovieRankerImpl : torch::nn::Module {
  explicit MovieRankerImpl(const tessera::data::FeaturePipeline& pipeline);

  /// Returns the logits. The features of the user may have one row beside those of many
  /// movies. A logit contains the dot product of the vectors of user and movie, so these are
  /// trained, too, and a search by them finds the candidates.
  torch::Tensor forward(const tessera::Features& features);  // [batch]

  tessera::TPUEmbedding embedding{nullptr};
  tessera::MLP query_tower{nullptr};
  tessera::MLP tower{nullptr};
};
TORCH_MODULE(MovieRanker);

/// The part of the model that gives the vector of a user.
struct UserTower : torch::nn::Module {
  explicit UserTower(MovieRanker of) : ranker(std::move(of)) {
    register_module("embedding", ranker->embedding);
    register_module("query_tower", ranker->query_tower);
  }
  torch::Tensor forward(const tessera::Features& user) {
    return ranker->query_tower->forward(
        ranker->embedding->forward_partial(user));
  }

  MovieRanker ranker;
};

/// The features and the labels of some ratings.
struct RatingBatch {
  tessera::Features features = {};
  torch::Tensor is_liked = {};  // [batch], 0 or 1
};

/// The ratings in the order of time, with the movies that each user liked before.
class RatingStream {
 public:
  /// `data` must live longer than this object.
  RatingStream(const MovieLens& data, tessera::data::FeaturePipeline pipeline);

  int64_t size() const {
    return static_cast<int64_t>(ratings_.size());
  }
  /// Ratings [begin, end).
  RatingBatch batch(int64_t begin, int64_t end) const;

  /// The titles of the last movies that the user liked.
  std::vector<std::string> liked(int64_t user) const;

 private:
  struct Rated {
    MovieLens::Rating rating = {};
    int64_t liked_before = 0;  // the movies that the user had liked by then
  };

  std::vector<std::string> history(int64_t user, int64_t liked_before) const;

  const MovieLens& data_;
  tessera::data::FeaturePipeline pipeline_;
  std::vector<Rated> ratings_;
  std::vector<std::vector<int64_t>> liked_;  // by user, in the order of time
};
