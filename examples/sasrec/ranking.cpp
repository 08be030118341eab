// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/ranking.h"

#include <tessera/search/top_k_index.h>

#include <torch/types.h>

#include <algorithm>
#include <cmath>

using torch::Tensor;

namespace {

// [movies, movies]: the similarity of each movie to its nearest neighbors, 0 elsewhere.
Tensor similarities(const Tensor& matrix, int64_t neighbors) {
  Tensor together = matrix.t().matmul(matrix);
  const Tensor lengths = together.diagonal().clamp_min(1.0).sqrt();
  Tensor cosines = together / lengths.unsqueeze(1) / lengths;
  cosines.fill_diagonal_(0.0);
  const auto [values, ids] =
      cosines.topk(std::min(neighbors, cosines.size(0)), 1);
  return torch::zeros_like(cosines).scatter_(1, ids, values);
}

}  // namespace

Ranking ranking_of(
    const Tensor& queries,
    const Tensor& movies,
    const Histories& histories,
    HeldOut which) {
  const auto index = tessera::make_exact_index(movies);
  const tessera::TopK found = index->search(
      queries, std::min(kTop, index->size()), histories.seen(which));
  const Tensor is_hit = found.ids.eq(histories.held_out(which).unsqueeze(1));
  const Tensor gains =
      1.0 / torch::arange(2, 2 + found.ids.size(1), torch::kDouble).log2();
  return {
      .hit_rate = is_hit.any(1).to(torch::kDouble).mean().item<double>(),
      .ndcg = is_hit.to(torch::kDouble).matmul(gains).mean().item<double>()};
}

Ranking ranking_of(
    tessera::SASRec& model,
    const Histories& histories,
    HeldOut which) {
  return ranking_of(
      model->queries(histories.latest(which)),
      model->item_vectors(),
      histories,
      which);
}

Ranking ranking_by_popularity(const Histories& histories) {
  const Tensor counts = histories.seen_matrix(HeldOut::kValidation).sum(0);
  return ranking_of(
      torch::ones({static_cast<int64_t>(histories.users()), 1}),
      counts.unsqueeze(1),
      histories,
      HeldOut::kTest);
}

Ranking ranking_by_neighbors(const Histories& histories) {
  const Tensor train = histories.seen_matrix(HeldOut::kValidation);
  Tensor best;
  double best_ndcg = -1.0;
  for (const int64_t neighbors : {10, 20, 50, 100, 200, 500}) {
    const Tensor movies = similarities(train, neighbors);
    const double ndcg =
        ranking_of(train, movies, histories, HeldOut::kValidation).ndcg;
    if (ndcg > best_ndcg) {
      best_ndcg = ndcg;
      best = movies;
    }
  }
  return ranking_of(
      histories.seen_matrix(HeldOut::kTest), best, histories, HeldOut::kTest);
}
