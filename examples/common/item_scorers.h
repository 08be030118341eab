// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

/// The items of each user.
using ItemLists = std::vector<std::vector<int64_t>>;

/// The scores of all items for some histories, [batch, num_items] float32, in memory of their
/// own.
using ItemScores =
    std::function<at::Tensor(const tessera::RaggedFeature& histories)>;

tessera::RaggedFeature feature_of(const ItemLists& lists);

/// The `count` items of each user with the highest scores, best first, without those that
/// the user has. Equal scores are ordered by id. An item whose score is -infinity is never
/// found.
ItemLists best_items(
    const ItemScores& scores_of,
    const ItemLists& items,
    size_t count);

/// Scores an item by the number of users who have it, for all users alike.
ItemScores popularity_scores(const ItemLists& items, int64_t num_items);

/// The scores of `first` and `weight` times those of `second`. Before that, the scores for
/// each history are shifted and scaled to the mean 0 and the variance 1.
ItemScores mixed_scores(ItemScores first, ItemScores second, double weight);

/// The similarity and the id of other items, for each item.
using Neighbors = std::vector<std::vector<std::pair<float, int64_t>>>;

/// How similar item j is to item i, of which d_i and d_j users have, where the users u of
/// both have n_u items:
///
///   sum over u of n_u^-user_exponent * d_i^-exponent * d_j^-other_exponent
///
/// The defaults give the cosine of the sets of users. With user_exponent = exponent = alpha
/// and other_exponent = beta, this is RP3beta.
struct SimilarityOptions {
  double user_exponent = 0.0;
  double exponent = 0.5;
  double other_exponent = 0.5;
};

/// The `most` items that are most similar to each item, the best first. An item counts once
/// for a user.
/// Source:  RP3beta: Paudel et al. 2017, doi:10.1145/2955101.
Neighbors nearest_neighbors(
    ItemLists items,  // of each user
    int64_t num_items,
    size_t most,
    const SimilarityOptions& options = {});

/// The first `most` neighbors of each item.
Neighbors first_neighbors(const Neighbors& neighbors, size_t most);
/// The items that have an item among their neighbors.
Neighbors items_near(const Neighbors& neighbors);

/// The sum of the similarities to the items of a history. The item k places before the last
/// one has the weight recency^k. An item that is similar to none has the score -infinity.
ItemScores neighbor_scores(
    std::shared_ptr<const Neighbors> neighbors,
    double recency);
