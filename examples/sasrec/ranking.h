// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/sasrec/histories.h"

#include <tessera/models/sasrec.h>

#include <cstdint>

constexpr int64_t kTop = 10;

/// How well the held-out movies are ranked among all movies that a user has not seen.
struct Ranking {
  double hit_rate = 0.0;  // the share among the first ten
  double ndcg = 0.0;  // the mean of 1 / log2(rank + 1), or 0 after rank ten
};

/// The ranking for scores queries [users, dim] x movies [movies, dim].
Ranking ranking_of(
    const at::Tensor& queries,
    const at::Tensor& movies,
    const Histories& histories,
    HeldOut which);

Ranking ranking_of(
    tessera::SASRec& model,
    const Histories& histories,
    HeldOut which);

/// The most popular movies of the training, for all users alike.
Ranking ranking_by_popularity(const Histories& histories);

/// The sum of the cosine similarities to the movies of a user, where a movie is similar to
/// its nearest neighbors only. Their number is that with the best NDCG on the validation
/// movies.
Ranking ranking_by_neighbors(const Histories& histories);
