// SPDX-License-Identifier: Apache-2.0
#include "examples/common/item_scorers.h"

#include "examples/common/batches.h"
#include "examples/common/movielens_features.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

std::vector<int64_t> best_of(
    const float* scores,
    int64_t num_items,
    size_t count) {
  std::vector<std::pair<float, int64_t>> best;
  float least = kNever;  // the score that an item must exceed
  for (int64_t item = 0; item < num_items; ++item) {
    if (scores[item] > least) {
      const auto place = std::upper_bound(
          best.begin(),
          best.end(),
          scores[item],
          [](float score, const auto& other) { return score > other.first; });
      best.insert(place, {scores[item], item});
      best.resize(std::min(best.size(), count));
      least = best.size() == count ? best.back().first : kNever;
    }
  }
  std::vector<int64_t> ids;
  for (const auto& [score, item] : best) {
    ids.push_back(item);
  }
  return ids;
}

// The users of each item.
std::vector<std::vector<size_t>> users_of(
    const ItemLists& items,
    int64_t num_items) {
  std::vector<std::vector<size_t>> users(static_cast<size_t>(num_items));
  for (size_t user = 0; user < items.size(); ++user) {
    for (const int64_t item : items[user]) {
      users[item].push_back(user);
    }
  }
  return users;
}

void sort_and_cut(
    std::vector<std::pair<float, int64_t>>& neighbors,
    size_t most) {
  const size_t kept = std::min(most, neighbors.size());
  std::partial_sort(
      neighbors.begin(),
      neighbors.begin() + static_cast<std::ptrdiff_t>(kept),
      neighbors.end(),
      std::greater<>());
  neighbors.resize(kept);
  neighbors.shrink_to_fit();
}

}  // namespace

tessera::RaggedFeature feature_of(const ItemLists& lists) {
  Bags bags;
  for (const std::vector<int64_t>& items : lists) {
    for (const int64_t item : items) {
      bags.add(item);
    }
    bags.end_bag();
  }
  return bags.feature();
}

ItemLists best_items(
    const ItemScores& scores_of,
    const ItemLists& items,
    size_t count) {
  constexpr int64_t kUsers = 512;
  ItemLists found;
  for (const ItemLists& users : in_batches(items, kUsers)) {
    const torch::Tensor scores = scores_of(feature_of(users));
    auto* row = scores.mutable_data_ptr<float>();
    for (const std::vector<int64_t>& own : users) {
      for (const int64_t item : own) {
        row[item] = kNever;
      }
      found.push_back(best_of(row, scores.size(1), count));
      row += scores.size(1);
    }
  }
  return found;
}

ItemScores popularity_scores(const ItemLists& items, int64_t num_items) {
  const at::Tensor counts =
      feature_of(items).values.bincount({}, num_items).to(torch::kFloat);
  return [=](const tessera::RaggedFeature& histories) {
    return counts.expand({histories.row_splits.size(0) - 1, -1})
        .clone(at::MemoryFormat::Contiguous);
  };
}

ItemScores mixed_scores(ItemScores first, ItemScores second, double weight) {
  const auto standardize = [](at::Tensor scores) {
    const auto [variance, mean] = torch::var_mean(
        scores, /*dim=*/1, /*unbiased=*/false, /*keepdim=*/true);
    // Scores that are all equal become zeros.
    return scores.sub_(mean).mul_(variance.clamp_min(1e-30).rsqrt());
  };
  return [=](const tessera::RaggedFeature& histories) {
    return standardize(first(histories))
        .add_(standardize(second(histories)), weight);
  };
}

Neighbors nearest_neighbors(
    ItemLists items,
    int64_t num_items,
    size_t most,
    const SimilarityOptions& options) {
  std::vector<double> user_weights;
  for (std::vector<int64_t>& own : items) {
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    user_weights.push_back(
        std::pow(static_cast<double>(own.size()), -options.user_exponent));
  }
  const auto users = users_of(items, num_items);
  const auto power = [&](int64_t item, double exponent) {
    return std::pow(static_cast<double>(users[item].size()), -exponent);
  };
  Neighbors neighbors(users.size());
  std::vector<double> together(users.size(), 0.0);
  for (int64_t item = 0; item < num_items; ++item) {
    std::vector<int64_t> others;
    for (const size_t user : users[item]) {
      for (const int64_t other : items[user]) {
        if (together[other] == 0.0) {
          others.push_back(other);
        }
        together[other] += user_weights[user];
      }
    }
    const double own = power(item, options.exponent);
    for (const int64_t other : others) {
      const double both = std::exchange(together[other], 0.0);
      if (other != item) {
        const double similarity =
            both * own * power(other, options.other_exponent);
        neighbors[item].emplace_back(static_cast<float>(similarity), other);
      }
    }
    sort_and_cut(neighbors[item], most);
  }
  return neighbors;
}

Neighbors first_neighbors(const Neighbors& neighbors, size_t most) {
  Neighbors first = neighbors;
  for (auto& own : first) {
    own.resize(std::min(own.size(), most));
  }
  return first;
}

Neighbors items_near(const Neighbors& neighbors) {
  Neighbors near(neighbors.size());
  for (size_t item = 0; item < neighbors.size(); ++item) {
    for (const auto& [similarity, other] : neighbors[item]) {
      near[other].emplace_back(similarity, static_cast<int64_t>(item));
    }
  }
  return near;
}

ItemScores neighbor_scores(
    std::shared_ptr<const Neighbors> neighbors,
    double recency) {
  return [=](const tessera::RaggedFeature& histories) {
    const int64_t batch = histories.row_splits.size(0) - 1;
    at::Tensor scores =
        torch::full({batch, std::ssize(*neighbors)}, kNever, torch::kFloat);
    const auto* ids = histories.values.const_data_ptr<int64_t>();
    const auto* splits = histories.row_splits.const_data_ptr<int64_t>();
    auto* row = scores.mutable_data_ptr<float>();
    for (int64_t user = 0; user < batch; ++user, row += scores.size(1)) {
      double weight = 1.0;
      for (int64_t i = splits[user + 1] - 1; i >= splits[user]; --i) {
        for (const auto& [similarity, item] : (*neighbors)[ids[i]]) {
          row[item] = (row[item] == kNever ? 0.0F : row[item]) +
              static_cast<float>(weight) * similarity;
        }
        weight *= recency;
      }
    }
    return scores;
  };
}
