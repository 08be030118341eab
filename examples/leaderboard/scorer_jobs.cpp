// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/scorer_jobs.h"

#include "examples/common/stopwatch.h"

#include <memory>
#include <optional>
#include <utility>

namespace {

using Fits = std::function<std::vector<ScorerFit>(int64_t, ItemOrder)>;

// Chooses when the first job needs it. Jobs with other training items share the choice.
std::function<const ScorerChoice&()> lazy_choice(
    LazyScorerTask task,
    Fits fits) {
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

Job scorer_job(
    std::string name,
    LazyScorerTask task,
    std::function<const ScorerChoice&()> choice,
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
        result = task().test(scores);
        const double all_seconds = watch.seconds();
        result.validation = chosen.validation;
        result.chosen = chosen.settings;
        result.tries = chosen.tries;
        result.choice_seconds = chosen.seconds;
        result.train_seconds = kind == ScorerKind::kModel ? seconds : 0.0;
        result.evaluation_seconds = all_seconds - result.train_seconds;
        return 0;
      }};
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

std::vector<Job> ease_jobs(const LazyScorerTask& task) {
  const auto choice = lazy_choice(task, ease_fits);
  return {
      scorer_job("EASE", task, choice, ScorerKind::kModel),
      scorer_job(
          "EASE, refitted",
          task,
          choice,
          ScorerKind::kModel,
          &ScorerTask::refit)};
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
