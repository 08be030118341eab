// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/item_scorers.h"
#include "examples/sasrec/histories.h"

#include <tessera/models/sasrec.h>

#include <cstddef>
#include <cstdint>

constexpr int64_t kTop = 10;

/// How well the held-out items are ranked among all items that a user does not have yet.
struct Ranking {
  double hit_rate = 0.0;  // the share among the first ten
  double ndcg = 0.0;  // the mean of 1 / log2(rank + 1), or 0 after rank ten
  /// The standard errors of these means over the users.
  double hit_rate_error = 0.0;
  double ndcg_error = 0.0;
  ItemLists lists = {};  // the first 20 items of each user
};

Ranking ranking_of(
    tessera::SASRec& model,
    const Histories& histories,
    HeldOut which);
Ranking ranking_by_scores(
    const ItemScores& scores,
    const Histories& histories,
    HeldOut which);

/// The items of each user before the held-out one.
ItemLists items_before(const Histories& histories, HeldOut which);

/// The items that most users had before their last one, for all users alike.
Ranking ranking_by_popularity(const Histories& histories);

/// The sum of the cosine similarities to the items of a user, where an item is similar to
/// its nearest neighbors only, and an older item counts less. The number of neighbors and
/// the weight of each older item are those with the best NDCG on the validation items.
Ranking ranking_by_neighbors(const Histories& histories);
