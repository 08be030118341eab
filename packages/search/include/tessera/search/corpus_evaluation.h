// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/search/top_k_index.h>
#include <tessera/training/batch_source.h>
#include <tessera/training/callback.h>
#include <tessera/training/fit.h>
#include <tessera/training/history.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::training {

/// The vectors of a batch of items.
struct CandidateVectors {
  at::Tensor vectors = {};  // [n, dim] floats
  at::Tensor ids = {};  // [n] int32 or int64, different ids >= 0
};

/// The vectors of a batch of queries, such as users, and the ids that they should find.
struct CorpusQueries {
  at::Tensor vectors = {};  // [n, dim] floats
  /// The relevant ids: [n], one per query, or the values of bags.
  at::Tensor labels = {};
  /// The splits of the bags, as in StepResult. Undefined: there is one relevant id per
  /// query.
  at::Tensor label_splits = {};  // [n + 1]
  /// The ids that a search leaves out, such as those that a user has seen. May
  /// be empty.
  RaggedFeature seen = {};
  at::Tensor weights = {};  // [n] floats >= 0
};

/// Gives batches to a function, one after another. Each call begins with the first batch.
template <class Batch>
using BatchLoop = std::function<void(const std::function<void(Batch)>&)>;

/// Applies `convert`, which returns a `Result`, to each batch of `source`. The source is of
/// a kind that make_pass() takes.
template <class Result, class Source, class Convert>
BatchLoop<Result> make_batch_loop(Source&& source, Convert convert) {
  const auto loop = std::make_shared<detail::ConvertedSource<Source, Convert>>(
      std::forward<Source>(source), std::move(convert));
  return
      [loop](const std::function<void(Result)>& use) { loop->for_each(use); };
}

/// What a CorpusEvaluation measures, and how.
struct CorpusEvaluationOptions {
  /// Metrics of retrieved ids: RankingMetrics with k, and CatalogueCoverage.
  Metrics metrics = {};
  /// The names of the logs are this prefix and the names of the metrics.
  std::string prefix = "val_";
  /// A model to put into eval() during the evaluation. Unset: no model changes its mode.
  ModelPointer model = {};
  /// Evaluates after every so many epochs, >= 1, and after the last. The other epochs log
  /// NaN.
  int64_t every_epochs = 1;
  /// Makes the index from vectors [size, dim] float32 and ids [size]. Unset:
  /// make_exact_index(). Use make_faiss_index() for more items than an exact search can
  /// compare.
  std::function<std::unique_ptr<TopKIndex>(
      const at::Tensor& vectors,
      const at::Tensor& ids)>
      make_index = {};
};

// snippet: tests/docs/reference_metrics_test.cpp CorpusEvaluation
/// At the end of each epoch, searches all items for the best ones of each query, and logs
/// metrics of the results, so that other callbacks can monitor them.
///
///   const auto corpus = std::make_shared<CorpusEvaluation>(
///       make_batch_loop<CandidateVectors>(
///           item_batches,
///           [&](const at::Tensor& ids) {
///             return CandidateVectors{
///                 .vectors = item_tower->forward(ids), .ids = ids};
///           }),
///       make_batch_loop<CorpusQueries>(
///           test_batches,
///           [&](const Visit& visit) {
///             return CorpusQueries{
///                 .vectors = user_tower->forward(visit.user),
///                 .labels = visit.next_item,
///                 .seen = visit.seen};
///           }),
///       CorpusEvaluationOptions{
///           .metrics = {
///               std::make_shared<RecallAtK>(),
///               std::make_shared<NDCG>(RankingMetricOptions{.k = 5})}});
///   const auto stopping = std::make_shared<EarlyStopping>(
///       EarlyStoppingOptions{.monitor = "val_ndcg_at_5", .patience = 2});
///   const History history =
///       fit(batches, step, {.epochs = 5, .callbacks = {corpus, stopping}});
///   const double recall = history["val_recall_at_10"].back();
///
/// The evaluation computes all item vectors batch by batch, makes an index of them, and
/// searches it for one batch of queries at a time, all under NoGradGuard. An item that a
/// query has seen is never found, even if it is relevant. With a sharded strategy, each rank
/// evaluates and logs its own queries, and all ranks need the same number of batches.
///
/// Memory:  the vectors of all items as float32 and 8 bytes for each id, what the index
///          needs, and one batch of queries.
/// Errors:  c10::ValueError for metrics that do not say how many ids they use; for
///          batches without vectors or ids, or whose sizes do not match; if there are no
///          items, no queries, or no labels that are ids of items; those of TopKIndex and
///          of the metrics.
class CorpusEvaluation : public Callback {
 public:
  CorpusEvaluation(
      BatchLoop<CandidateVectors> candidates,
      BatchLoop<CorpusQueries> queries,
      CorpusEvaluationOptions options);

  /// The metrics of the model as it is now, with their prefix. No fit() is necessary.
  Logs evaluate() const;

  void on_epoch_end(Training& training) override;
  std::vector<std::string> log_names() const override;
  Better better(const std::string& log_name) const override;

 private:
  BatchLoop<CandidateVectors> candidates_;
  BatchLoop<CorpusQueries> queries_;
  CorpusEvaluationOptions options_;
  int64_t depth_ = 0;  // the number of ids that the metrics use
};

}  // namespace tessera::training
