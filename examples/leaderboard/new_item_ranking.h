// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/mean_and_spread.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

/// How well the test items are ranked among all items that a user has not in training:
/// means over the users with test items.
struct NewItemRanking {
  double recall = 0.0;  // the share of the test items among the first 20
  /// The sum of 1 / log2(rank + 1) of the test items among the first 20, divided by that of
  /// a perfect order.
  double ndcg = 0.0;
  /// The standard errors of these means over the users.
  double recall_error = 0.0;
  double ndcg_error = 0.0;
  /// The first 20 items of each of these users.
  std::vector<std::vector<int64_t>> lists = {};
};

/// Computes a NewItemRanking.
class NewItemRankingSum {
 public:
  static constexpr size_t kFirst = 20;

  /// Adds a user. `found` are the first 20 items of the ranking, or fewer, and `test` has one
  /// item or more.
  void add(
      const std::vector<int64_t>& found,
      const std::vector<int64_t>& test) {
    double hits = 0.0;
    double gain = 0.0;
    double best = 0.0;
    for (size_t rank = 0; rank < kFirst; ++rank) {
      const double own = 1.0 / std::log2(static_cast<double>(rank) + 2.0);
      best += rank < test.size() ? own : 0.0;
      if (rank < found.size() &&
          std::find(test.begin(), test.end(), found[rank]) != test.end()) {
        hits += 1.0;
        gain += own;
      }
    }
    recalls_.push_back(hits / static_cast<double>(test.size()));
    ndcgs_.push_back(gain / best);
    lists_.push_back(found);
  }

  NewItemRanking mean() const {
    const MeanAndError recall = mean_and_error(recalls_);
    const MeanAndError ndcg = mean_and_error(ndcgs_);
    return {
        .recall = recall.mean,
        .ndcg = ndcg.mean,
        .recall_error = recall.error,
        .ndcg_error = ndcg.error,
        .lists = lists_};
  }

 private:
  std::vector<double> recalls_;
  std::vector<double> ndcgs_;
  std::vector<std::vector<int64_t>> lists_;
};
