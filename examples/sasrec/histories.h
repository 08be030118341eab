// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/features/feature.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

/// The movie of each user that is held out.
enum class HeldOut {
  kValidation,  // the one before the last
  kTest  // the last one
};

/// The movies of each user in the order of rating. The last two are not for training.
class Histories {
 public:
  /// The inputs of a training step: each user's latest movies, and the movie that follows
  /// each of them.
  struct Batch {
    tessera::RaggedFeature sequences = {};
    at::Tensor targets = {};  // [nnz]
    at::Tensor negatives =
        {};  // [nnz], not rated by the user; undefined without them
  };

  /// A user has at most `max_length` movies in a sequence. Users with fewer than three
  /// ratings are left out.
  /// Errors:  c10::ValueError if no user has four ratings.
  Histories(const MovieLens& data, int64_t max_length);

  int64_t movies() const {
    return num_movies_;
  }
  /// The users with a training sequence.
  const std::vector<size_t>& train_users() const {
    return train_users_;
  }
  size_t users() const {
    return movies_.size();
  }

  Batch batch(const std::vector<size_t>& users) const;
  /// The same with random negatives.
  Batch batch(const std::vector<size_t>& users, std::mt19937_64& random) const;

  /// The held-out movie of each user, [users].
  at::Tensor held_out(HeldOut which) const;
  /// All movies before the held-out one.
  tessera::RaggedFeature seen(HeldOut which) const;
  /// The latest of these movies, at most max_length.
  tessera::RaggedFeature latest(HeldOut which) const;
  /// 1 for each movie before the held-out one, [users, movies]. With kValidation, these
  /// are the movies for training.
  at::Tensor seen_matrix(HeldOut which) const;

 private:
  size_t end_of(size_t user, HeldOut which) const;
  tessera::RaggedFeature bags(HeldOut which, size_t max_length) const;

  size_t max_length_;
  int64_t num_movies_;
  std::vector<std::vector<int64_t>> movies_;  // of each user
  std::vector<size_t> train_users_;
};
