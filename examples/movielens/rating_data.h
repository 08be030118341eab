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

/// Splits ratings into training and test, and makes features of them. Features contain
/// neither held-out ratings nor the rating to predict.
///
/// The first fifth of the file is the test. Of MovieLens 100K, this is the split u1 that
/// published results use: its u1.test has the first 20,000 lines of u.data.
///
/// The features of a rating, besides those of user_features() and movie_features():
///
///   user_bias, movie_bias        the ids again, for tables of their own
///   user_pairs                   the pairs of the user with each other rater of the movie
///   history, raters              the movies that the user has rated, and the users who
///                                have rated the movie
///   history_stars, raters_stars  the same, with weights: how far the stars are from
///                                by_biases(), divided by the root of the number of ids
class RatingData {
 public:
  /// With `validate`, a random tenth of the training ratings takes the place of the test,
  /// to choose settings.
  /// Errors:  c10::ValueError for too few ratings.
  RatingData(MovieLens data, bool validate);

  const MovieLens& movielens() const {
    return data_;
  }
  const Ratings& train() const {
    return train_;
  }
  const Ratings& test() const {
    return test_;
  }
  /// Returns whether training and test have the sizes of u1.base and u1.test.
  bool is_u1() const;
  /// The mean of the training stars.
  double mean() const {
    return mean_;
  }
  /// mean + user bias + movie bias, fitted to the training ratings by alternating ridge
  /// regressions. A model should be better than this baseline.
  double by_biases(const MovieLens::Rating& rating) const {
    return mean_ + user_biases_[rating.user] + movie_biases_[rating.movie];
  }
  /// One rating without stars for each movie that the user has not rated.
  Ratings unrated(int64_t user) const;

  RatingBatch batch(const Ratings& ratings) const;

 private:
  void fit_biases();

  MovieLens data_;
  Ratings train_, test_;
  std::vector<Ratings> rated_;  // training ratings of each user
  std::vector<Ratings> raters_;  // training ratings of each movie
  double mean_ = 0.0;
  std::vector<double> user_biases_;
  std::vector<double> movie_biases_;
};
