// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/features/feature.h>

#include <cstddef>
#include <cstdint>
#include <vector>

/// The inputs of a tower.
struct TowerInputs {
  tessera::Features features = {};
  tessera::Weights weights = {};
};

/// The moment before a user rates the movie at `position` of the user's sequence.
struct Moment {
  int64_t user = 0;
  size_t position = 0;
};

using Moments = std::vector<Moment>;

/// The movies of each user in the order of rating. The last one is held out.
class Sequences {
 public:
  /// With `validation`, the last movie of each user is ignored, and the one before it is
  /// held out.
  /// Errors:  c10::ValueError if no user has two ratings.
  Sequences(MovieLens data, bool validation);

  const MovieLens& movielens() const {
    return data_;
  }
  const Moments& train() const {
    return train_;
  }
  const Moments& test() const {
    return test_;
  }
  /// How often each movie is in the training data, [movies].
  const at::Tensor& counts() const {
    return counts_;
  }
  /// The probability of each movie in the training data, [movies].
  const at::Tensor& shares() const {
    return shares_;
  }

  /// The movie that is rated at each moment, [moments].
  at::Tensor movies_of(const Moments& moments) const;
  /// The movies that were rated before each moment.
  tessera::RaggedFeature seen(const Moments& moments) const;
  /// The features of the users at these moments, or only their ids.
  TowerInputs users(const Moments& moments, bool only_ids) const;
  /// The features of movies with ids [n], or only their ids.
  TowerInputs movies(const at::Tensor& ids, bool only_ids) const;

 private:
  MovieLens data_;
  std::vector<std::vector<int64_t>> sequences_;  // movies of each user
  Moments train_, test_;
  at::Tensor counts_, shares_;
};
