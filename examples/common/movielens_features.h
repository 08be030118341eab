// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/features/feature.h>

#include <cstdint>
#include <vector>

// Features of users and movies. Ids are those of the struct MovieLens.

constexpr int64_t kAgeGroups = 14;  // five years each
constexpr int64_t kYears = 18;  // decades up to 1989, then single years

at::Tensor int64_tensor(const std::vector<int64_t>& values);

/// Builds a ragged feature bag by bag.
class Bags {
 public:
  void add(int64_t id);
  void end_bag();
  tessera::RaggedFeature feature() const;

 private:
  std::vector<int64_t> ids_;
  std::vector<int64_t> splits_{0};
};

/// The features "user", "age", "gender" and "occupation".
tessera::Features::Map user_features(
    const MovieLens& data,
    const std::vector<int64_t>& users);

/// The features "movie", "year" and "genres".
tessera::Features::Map movie_features(
    const MovieLens& data,
    const std::vector<int64_t>& movies);
