// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/movielens_data.h"

#include <tessera/features/feature.h>

#include <cstdint>
#include <vector>

// What MovieLens knows of users and movies, as features. Ids are those of MovieLens.

constexpr int64_t kAgeGroups = 14;  // of five years
constexpr int64_t kYears = 18;  // decades up to 1989, then single years

at::Tensor int64_tensor(const std::vector<int64_t>& values);

/// Bags of ids that are filled one after the other.
class Bags {
 public:
  void add(int64_t id);
  void end_bag();
  tessera::RaggedFeature feature() const;

 private:
  std::vector<int64_t> ids_;
  std::vector<int64_t> splits_{0};
};

/// "user", "age", "gender" and "occupation".
tessera::Features::Map user_features(
    const MovieLens& data,
    const std::vector<int64_t>& users);

/// "movie", "year" and "genres".
tessera::Features::Map movie_features(
    const MovieLens& data,
    const std::vector<int64_t>& movies);
