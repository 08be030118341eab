// SPDX-License-Identifier: Apache-2.0
#include "examples/common/item_neighbors.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

std::vector<int64_t> items_by_popularity(
    const std::vector<std::vector<int64_t>>& lists,
    int64_t num_items) {
  std::vector<int64_t> counts(static_cast<size_t>(num_items), 0);
  for (const std::vector<int64_t>& items : lists) {
    for (const int64_t item : items) {
      ++counts[item];
    }
  }
  std::vector<int64_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return counts[a] > counts[b];
  });
  return order;
}

Neighbors nearest_neighbors(
    std::vector<std::vector<int64_t>> items,
    int64_t num_items,
    size_t most) {
  const auto count = static_cast<size_t>(num_items);
  std::vector<std::vector<size_t>> users(count);
  for (size_t user = 0; user < items.size(); ++user) {
    std::sort(items[user].begin(), items[user].end());
    items[user].erase(
        std::unique(items[user].begin(), items[user].end()), items[user].end());
    for (const int64_t item : items[user]) {
      users[item].push_back(user);
    }
  }
  Neighbors neighbors(count);
  std::vector<int64_t> together(count, 0);  // users of both items
  for (size_t item = 0; item < count; ++item) {
    std::vector<int64_t> others;
    for (const size_t user : users[item]) {
      for (const int64_t other : items[user]) {
        if (together[other]++ == 0) {
          others.push_back(other);
        }
      }
    }
    for (const int64_t other : others) {
      const auto both = static_cast<double>(together[other]);
      together[other] = 0;
      if (other != static_cast<int64_t>(item)) {
        const auto product =
            static_cast<double>(users[item].size() * users[other].size());
        neighbors[item].emplace_back(both / std::sqrt(product), other);
      }
    }
    const size_t kept = std::min(most, neighbors[item].size());
    std::partial_sort(
        neighbors[item].begin(),
        neighbors[item].begin() + static_cast<std::ptrdiff_t>(kept),
        neighbors[item].end(),
        std::greater<>());
    neighbors[item].resize(kept);
  }
  return neighbors;
}
