// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/new_users/split.h"

#include <tessera/models/fold_in.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

/// A trained matrix factorization. The first column of a row is a bias.
struct Rater {
  at::Tensor users = {};  // [users, 1 + factors]
  at::Tensor items = {};  // [items, 1 + factors]
  double mean = 0.0;

  /// The predicted stars, [ratings].
  at::Tensor predict(const Ratings& ratings) const;
};

Rater train_rater(const RatingLists& train, int64_t num_items, int64_t seed);

/// The rows of new users from their ratings, or of new items if `known` are the rows of
/// users. `ids` are the known sides of the ratings `stars`.
at::Tensor fold_in_rows(
    const at::Tensor& known,
    double mean,
    const tessera::RaggedFeature& ids,
    const at::Tensor& stars,
    const at::Tensor& priors);
