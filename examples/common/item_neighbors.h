// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

/// The items by the number of times that they are in the lists, most first.
std::vector<int64_t> items_by_popularity(
    const std::vector<std::vector<int64_t>>& lists,
    int64_t num_items);

/// The similarity and the id of other items, for each item.
using Neighbors = std::vector<std::vector<std::pair<float, int64_t>>>;

/// The `most` items that are most similar to each item, the best first. The similarity is
/// the cosine of the sets of users: users of both items / sqrt(users * users).
Neighbors nearest_neighbors(
    std::vector<std::vector<int64_t>> items,  // of each user
    int64_t num_items,
    size_t most);
