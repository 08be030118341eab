// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/scorer_jobs.h"

#include "examples/common/stopwatch.h"

#include <memory>
#include <optional>
#include <utility>

namespace {

using Fits = std::function<std::vector<ScorerFit>(int64_t, ItemOrder)>;

LazyScorerChoice lazy_choice(LazyScorerTask task, Fits fits) {
  auto choice = std::make_shared<std::optional<ScorerChoice>>();
  return [=]() -> const ScorerChoice& {
    if (!*choice) {
      *choice = choose_scorer(
          fits(task().num_items, task().order),
          task().choice,
          task().validation_ndcg);
    }
    return **choice;
  };
}

enum class ScorerKind { kModel, kSimpleMethod };

// Measures what was chosen, and returns it as a result.
Result result_of(
    const ScorerTask& task,
    const ScorerChoice& choice,
    const ItemScores& scores) {
  const Stopwatch watch;
  Result result = task.test(scores);
  result.evaluation_seconds = watch.seconds();
  result.validation = choice.validation;
  result.chosen = choice.settings;
  result.tries = choice.tries;
  result.choice_seconds = choice.seconds;
  return result;
}

Job scorer_job(
    std::string name,
    LazyScorerTask task,
    LazyScorerChoice choice,
    ScorerKind kind,
    ItemLists ScorerTask::*train = &ScorerTask::train) {
  return {
      .model = std::move(name),
      .has_seeds = false,
      .run = [=](int64_t /*seed*/, Result& result) {
        const ScorerChoice& chosen = choice();
        const Stopwatch watch;
        const ItemScores scores = chosen.fit_to(task().*train);
        const double seconds = watch.seconds();
        result = result_of(task(), chosen, scores);
        (kind == ScorerKind::kModel ? result.train_seconds
                                    : result.evaluation_seconds) += seconds;
        return 0;
      }};
}

// Chooses the weight of the second model on validation items.
ScorerChoice choose_mixture(
    const ScorerTask& task,
    const ItemScores& first,
    const ItemScores& second) {
  std::vector<ScorerVariant> variants;
  for (const double weight : {0.0, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0}) {
    variants.push_back(
        {.settings = {{"weight", weight}},
         .scores = mixed_scores(first, second, weight)});
  }
  return choose_scorer(
      {[=](const ItemLists& /*train*/) { return variants; }},
      {},
      task.validation_ndcg);
}

}  // namespace

std::vector<Job> neighbor_jobs(const LazyScorerTask& task) {
  return {
      scorer_job(
          "item-kNN",
          task,
          lazy_choice(task, neighbor_fits),
          ScorerKind::kSimpleMethod),
      scorer_job(
          "RP3beta",
          task,
          lazy_choice(task, rp3beta_fits),
          ScorerKind::kSimpleMethod)};
}

LazyScorerChoice ease_choice(const LazyScorerTask& task) {
  return lazy_choice(task, ease_fits);
}

std::vector<Job> ease_jobs(
    const LazyScorerTask& task,
    const LazyScorerChoice& choice) {
  return {
      scorer_job("EASE", task, choice, ScorerKind::kModel),
      scorer_job(
          "EASE, refitted",
          task,
          choice,
          ScorerKind::kModel,
          &ScorerTask::refit)};
}

Job mixture_job(
    const LazyScorerTask& task,
    const LazyScorerChoice& ease,
    const std::string& name,
    tessera::Json settings,
    std::function<TrainedModel(int64_t seed)> train) {
  return {
      .model = "mixture of " + name + " and EASE",
      .settings = std::move(settings),
      .run = [=](int64_t seed, Result& result) {
        const TrainedModel model = train(seed);
        if (model.stop_signal != 0) {
          return model.stop_signal;
        }
        const ScorerChoice& choice = ease();
        const Stopwatch watch;
        const ItemScores ease_scores = choice.fit_to(task().train);
        const double seconds = watch.seconds();
        const ScorerChoice chosen =
            choose_mixture(task(), model.scores, ease_scores);
        result = result_of(task(), chosen, chosen.fit_to({}));
        result.train_seconds = model.train_seconds + seconds;
        return 0;
      }};
}

Job graph_filter_job(const LazyScorerTask& task) {
  const auto choice = std::make_shared<ScorerChoice>();
  return scorer_job(
      "graph filter, published settings",
      task,
      [=]() -> const ScorerChoice& {
        choice->fit = graph_filter_fit(task().num_items);
        return *choice;
      },
      ScorerKind::kModel);
}
