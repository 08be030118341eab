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

/// The state of a user before rating the movie at `position` of the user's sequence.
struct Example {
  int64_t user = 0;
  size_t position = 0;
};

using Examples = std::vector<Example>;

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
  const Examples& train() const {
    return train_;
  }
  const Examples& test() const {
    return test_;
  }
  /// How often each movie is in the training data, [movies].
  const at::Tensor& counts() const {
    return counts_;
  }
  /// The probability of each movie in the training data, [movies].
  const at::Tensor& probabilities() const {
    return probabilities_;
  }

  /// The movie that is rated in each example, [examples].
  at::Tensor movies_of(const Examples& examples) const;
  /// The movies that were rated before each example.
  tessera::RaggedFeature seen(const Examples& examples) const;
  /// The features of the users in these examples, or only their ids.
  TowerInputs users(const Examples& examples, bool only_ids) const;
  /// The features of movies with ids [n], or only their ids.
  TowerInputs movies(const at::Tensor& ids, bool only_ids) const;

 private:
  MovieLens data_;
  std::vector<std::vector<int64_t>> sequences_;  // movies of each user
  Examples train_, test_;
  at::Tensor counts_, probabilities_;
};
