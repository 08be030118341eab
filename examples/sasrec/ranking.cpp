// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/ranking.h"

#include "examples/common/mean_and_spread.h"
#include "examples/common/scorer_search.h"

#include <tessera/search/top_k_index.h>

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kListed = 20;

Ranking ranking_of(ItemLists lists, const Histories& histories, HeldOut which) {
  std::vector<double> hits;
  std::vector<double> gains;
  for (size_t user = 0; user < lists.size(); ++user) {
    const auto begin = lists[user].begin();
    const auto rank =
        std::find(begin, lists[user].end(), histories.held_out(user, which)) -
        begin;
    const bool is_hit = rank < std::min(kTop, std::ssize(lists[user]));
    hits.push_back(is_hit ? 1.0 : 0.0);
    gains.push_back(
        is_hit ? 1.0 / std::log2(static_cast<double>(rank) + 2.0) : 0.0);
  }
  const MeanAndError hit_rate = mean_and_error(hits);
  const MeanAndError ndcg = mean_and_error(gains);
  return {
      .hit_rate = hit_rate.mean,
      .ndcg = ndcg.mean,
      .hit_rate_error = hit_rate.error,
      .ndcg_error = ndcg.error,
      .lists = std::move(lists)};
}

}  // namespace

ItemLists items_before(const Histories& histories, HeldOut which) {
  ItemLists items(histories.users());
  for (size_t user = 0; user < items.size(); ++user) {
    items[user] = histories.seen(user, which);
  }
  return items;
}

Ranking ranking_of(
    tessera::SASRec& model,
    const Histories& histories,
    HeldOut which) {
  const auto index = tessera::make_exact_index(model->item_vectors());
  const tessera::TopK found = index->search(
      model->queries(histories.latest(which)),
      std::min(kListed, index->size()),
      histories.seen(which));
  ItemLists lists(histories.users());
  const auto ids = found.ids.accessor<int64_t, 2>();
  for (size_t user = 0; user < lists.size(); ++user) {
    const int64_t* first = ids[static_cast<int64_t>(user)].data();
    lists[user].assign(first, first + found.ids.size(1));
    std::erase(lists[user], -1);  // the user has almost all items
  }
  return ranking_of(std::move(lists), histories, which);
}

Ranking ranking_by_scores(
    const ItemScores& scores,
    const Histories& histories,
    HeldOut which) {
  return ranking_of(
      best_items(scores, items_before(histories, which), kListed),
      histories,
      which);
}

Ranking ranking_by_popularity(const Histories& histories) {
  return ranking_by_scores(
      popularity_scores(
          items_before(histories, HeldOut::kTest), histories.num_items()),
      histories,
      HeldOut::kTest);
}

Ranking ranking_by_neighbors(const Histories& histories) {
  const ItemLists train = items_before(histories, HeldOut::kValidation);
  const ScorerChoice choice = choose_scorer(
      neighbor_fits(histories.num_items(), ItemOrder::kTime),
      train,
      [&](const ItemScores& scores) {
        return ranking_by_scores(scores, histories, HeldOut::kValidation).ndcg;
      });
  return ranking_by_scores(choice.fit_to(train), histories, HeldOut::kTest);
}
