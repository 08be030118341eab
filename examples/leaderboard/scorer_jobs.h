// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/scorer_search.h"
#include "examples/leaderboard/jobs.h"
#include "examples/leaderboard/results.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// How scorers are chosen and tested on a data set.
struct ScorerTask {
  int64_t num_items = 0;
  ItemOrder order = ItemOrder::kNone;
  ItemLists choice = {};  // the items of users while settings are chosen
  ItemLists train = {};  // the items to which the tested scorer is fitted
  ItemLists refit = {};  // with the validation items, for ease_jobs()
  std::function<double(const ItemScores&)> validation_ndcg = {};
  /// Fills the metrics, the standard errors and the lists.
  std::function<Result(const ItemScores&)> test = {};
};

using LazyScorerTask = std::function<const ScorerTask&()>;

/// The choice of a method's settings. The first call makes it.
using LazyScorerChoice = std::function<const ScorerChoice&()>;

/// The jobs of item-kNN and RP3beta. Each tries the settings of its list, which
/// scorer_search.cpp has. `task` is called by the first job that runs.
std::vector<Job> neighbor_jobs(const LazyScorerTask& task);

LazyScorerChoice ease_choice(const LazyScorerTask& task);

/// The jobs of EASE. The second one also fits the chosen settings to the validation items.
std::vector<Job> ease_jobs(
    const LazyScorerTask& task,
    const LazyScorerChoice& choice);

/// The result of a training with one seed, which mixture_job() mixes with EASE.
struct TrainedModel {
  ItemScores scores = {};
  double train_seconds = 0.0;
  int stop_signal = 0;  // of a training that was stopped
};

/// The job that adds the scores of EASE to those of the model `name`, with a weight that is
/// chosen on the validation items. The result has the `settings` of the model.
Job mixture_job(
    const LazyScorerTask& task,
    const LazyScorerChoice& ease,
    const std::string& name,
    tessera::Json settings,
    std::function<TrainedModel(int64_t seed)> train);

/// The job of the graph filter with its published settings.
Job graph_filter_job(const LazyScorerTask& task);
