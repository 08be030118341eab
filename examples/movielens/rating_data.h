// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/features/feature.h>

#include <cstdint>
#include <vector>

using Ratings = std::vector<MovieLens::Rating>;

/// A batch of ratings as features and labels of the model.
struct RatingBatch {
  tessera::Features features = {};
  tessera::Weights weights = {};
  at::Tensor stars = {};  // [batch]
};

/// Splits ratings at random into training and test, and makes features of them. Features
/// contain neither held-out ratings nor the rating to predict.
class RatingData {
 public:
  /// Errors:  c10::ValueError for too few ratings.
  RatingData(MovieLens data, int64_t seed);

  const MovieLens& movielens() const {
    return data_;
  }
  const Ratings& train() const {
    return train_;
  }
  const Ratings& test() const {
    return test_;
  }
  /// The mean of the training stars.
  double mean() const {
    return mean_;
  }
  /// One rating without stars for each movie that the user has not rated.
  Ratings unrated(int64_t user) const;

  RatingBatch batch(const Ratings& ratings) const;

 private:
  MovieLens data_;
  Ratings train_, test_;
  std::vector<Ratings> rated_;  // training ratings of each user
  std::vector<Ratings> raters_;  // training ratings of each movie
  double mean_ = 0.0;
};

/// Predicts the stars of the test as mean + user bias + movie bias, fitted by alternating
/// ridge regressions. A model should be better than this baseline.
at::Tensor predict_by_biases(const RatingData& data);
