// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/features/feature.h>

#include <cstddef>
#include <cstdint>
#include <vector>

/// What a tower takes.
struct TowerInputs {
  tessera::Features features = {};
  tessera::Weights weights = {};
};

/// A user, before the movie at this position of the user's sequence.
struct Moment {
  int64_t user = 0;
  size_t position = 0;
};

using Moments = std::vector<Moment>;

/// The movies of each user in the order of rating; the last one is held out.
class Sequences {
 public:
  /// `validation`: the last movies are left out, and those before them are held out.
  /// Errors:  c10::ValueError where no user has two ratings.
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
  /// The chance of each to be a training example's movie, [movies].
  const at::Tensor& shares() const {
    return shares_;
  }

  /// The movie of each moment, [moments].
  at::Tensor movies_of(const Moments& moments) const;
  /// The movies before each moment.
  tessera::RaggedFeature seen(const Moments& moments) const;
  /// What is known of the users at these moments, or just their ids.
  TowerInputs users(const Moments& moments, bool only_ids) const;
  /// The same of movies, with ids [n].
  TowerInputs movies(const at::Tensor& ids, bool only_ids) const;

 private:
  MovieLens data_;
  std::vector<std::vector<int64_t>> sequences_;  // by user
  Moments train_, test_;
  at::Tensor counts_, shares_;
};
