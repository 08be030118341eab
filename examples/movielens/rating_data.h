// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/features/feature.h>

#include <cstdint>
#include <vector>

using Ratings = std::vector<MovieLens::Rating>;

/// Some ratings as the model takes them.
struct RatingBatch {
  tessera::Features features = {};
  tessera::Weights weights = {};
  at::Tensor stars = {};  // [batch]
};

/// The ratings, split at random, and the features of any of them. Held-out ratings are in
/// no feature, and a rating is not in its own features.
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
  /// Of the stars to train on.
  double mean() const {
    return mean_;
  }
  /// A rating without stars of each movie that the user has not rated.
  Ratings unrated(int64_t user) const;

  RatingBatch batch(const Ratings& ratings) const;

 private:
  MovieLens data_;
  Ratings train_, test_;
  std::vector<Ratings> rated_;  // by user
  std::vector<Ratings> raters_;  // by movie
  double mean_ = 0.0;
};

/// The stars of the test by mean + user bias + movie bias, fitted by alternating ridge
/// regressions: what a model should do better than.
at::Tensor predict_by_biases(const RatingData& data);
