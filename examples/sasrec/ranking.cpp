// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/ranking.h"

#include "examples/common/item_neighbors.h"

#include <tessera/search/top_k_index.h>

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

using torch::Tensor;

namespace {

// Adds up the ranks of held-out items, counted from 0.
class RankingSum {
 public:
  void add(int64_t rank) {
    if (rank < kTop) {
      hits_ += 1.0;
      gains_ += 1.0 / std::log2(static_cast<double>(rank) + 2.0);
    }
  }
  Ranking over(size_t users) const {
    const auto count = static_cast<double>(users);
    return {.hit_rate = hits_ / count, .ndcg = gains_ / count};
  }

 private:
  double hits_ = 0.0;
  double gains_ = 0.0;
};

// An item that is similar to none of a user's items is never found.
Ranking ranking_of(
    const Neighbors& neighbors,
    size_t most,
    double decay,
    const Histories& histories,
    HeldOut which) {
  // The items that have an item among their first neighbors.
  Neighbors near(neighbors.size());
  for (size_t item = 0; item < neighbors.size(); ++item) {
    for (size_t i = 0; i < std::min(most, neighbors[item].size()); ++i) {
      const auto& [cosine, other] = neighbors[item][i];
      near[other].emplace_back(cosine, item);
    }
  }
  RankingSum sum;
  std::vector<double> scores(neighbors.size(), 0.0);
  for (size_t user = 0; user < histories.users(); ++user) {
    const std::vector<int64_t> seen = histories.seen(user, which);
    std::vector<int64_t> scored;
    double weight = 1.0;
    for (size_t i = seen.size(); i > 0; --i, weight *= decay) {
      for (const auto& [cosine, item] : near[seen[i - 1]]) {
        scored.push_back(item);
        scores[item] += weight * cosine;
      }
    }
    for (const int64_t item : seen) {
      scores[item] = 0.0;
    }
    const int64_t target = histories.held_out(user, which);
    const double own = scores[target];
    std::sort(scored.begin(), scored.end());
    scored.erase(std::unique(scored.begin(), scored.end()), scored.end());
    if (own > 0.0) {
      sum.add(
          std::count_if(scored.begin(), scored.end(), [&](const int64_t item) {
            return scores[item] > own || (scores[item] == own && item < target);
          }));
    }
    for (const int64_t item : scored) {
      scores[item] = 0.0;
    }
  }
  return sum.over(histories.users());
}

}  // namespace

Ranking ranking_of(
    tessera::SASRec& model,
    const Histories& histories,
    HeldOut which) {
  const auto index = tessera::make_exact_index(model->item_vectors());
  const tessera::TopK found = index->search(
      model->queries(histories.latest(which)),
      std::min(kTop, index->size()),
      histories.seen(which));
  const Tensor is_hit = found.ids.eq(histories.held_out(which).unsqueeze(1));
  const Tensor gains =
      1.0 / torch::arange(2, 2 + found.ids.size(1), torch::kDouble).log2();
  return {
      .hit_rate = is_hit.any(1).to(torch::kDouble).mean().item<double>(),
      .ndcg = is_hit.to(torch::kDouble).matmul(gains).mean().item<double>()};
}

Ranking ranking_by_popularity(const Histories& histories) {
  std::vector<std::vector<int64_t>> all(histories.users());
  for (size_t user = 0; user < all.size(); ++user) {
    all[user] = histories.seen(user, HeldOut::kTest);
  }
  const std::vector<int64_t> order =
      items_by_popularity(all, histories.num_items());
  RankingSum sum;
  for (size_t user = 0; user < histories.users(); ++user) {
    const std::vector<int64_t>& seen = all[user];
    const int64_t target = histories.held_out(user, HeldOut::kTest);
    const auto is_seen = [&](int64_t item) {
      return std::find(seen.begin(), seen.end(), item) != seen.end();
    };
    int64_t rank = is_seen(target) ? kTop : 0;
    for (size_t i = 0; rank < kTop && order[i] != target; ++i) {
      rank += is_seen(order[i]) ? 0 : 1;
    }
    sum.add(rank);
  }
  return sum.over(histories.users());
}

Ranking ranking_by_neighbors(const Histories& histories) {
  constexpr size_t kMost = 500;
  std::vector<std::vector<int64_t>> items(histories.users());
  for (size_t user = 0; user < items.size(); ++user) {
    items[user] = histories.seen(user, HeldOut::kValidation);
  }
  const Neighbors neighbors =
      nearest_neighbors(std::move(items), histories.num_items(), kMost);
  size_t best_most = 0;
  double best_decay = 0.0, best_ndcg = -1.0;
  for (const size_t most : {10, 20, 50, 100, 200, 500}) {
    for (const double decay : {1.0, 0.9, 0.7, 0.5}) {
      const double ndcg =
          ranking_of(neighbors, most, decay, histories, HeldOut::kValidation)
              .ndcg;
      if (ndcg > best_ndcg) {
        best_ndcg = ndcg;
        best_most = most;
        best_decay = decay;
      }
    }
  }
  return ranking_of(
      neighbors, best_most, best_decay, histories, HeldOut::kTest);
}
