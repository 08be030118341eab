// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/training/metrics.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tessera::training {

/// The options of RecallAtK, NDCG and others, and their name in logs.
///
/// Each of these metrics is a mean over queries. Predictions have one of two forms, and
/// their dtype decides which:
///
///   Floats are lists of scores: predictions and labels [queries, list]. The item with
///   the highest score ranks first. Labels are grades >= 0, and items with a label of 1
///   or more are relevant. Items with a negative label or a weight of 0 are left out, as
///   if the list were shorter. Weights are [queries] or [queries, list].
///
///   int32 or int64 are retrieved ids: predictions [queries, retrieved], best first, like
///   TopK::ids. An id of -1 means no id. If an id is retrieved twice, only its first place
///   counts. Labels are the relevant ids: [queries] or [queries, 1] for one id per query,
///   or bags of ids, in update_ragged() or with StepResult::label_splits. An id that is
///   twice in a bag counts once. Weights are [queries].
///
/// The weight of a query is the mean weight of its relevant items, weighted by their
/// relevance. A query without a relevant item gets the mean weight of the queries that have
/// one, or does not count with `skip_queries_without_relevant`. If all items of a query are
/// left out, it does not count. NaN if no query counts.
///
/// Errors:  c10::ValueError for NaN, shapes and dtypes, for labels that are not finite,
///          for weights that are negative or not finite, and for relevant ids < 0.
/// Source:  the metrics of keras_rs.metrics. For queries without relevant items, Keras-RS
///          computes the mean weight over each batch, and not over all batches.
struct RankingMetricOptions {
  /// The order of items with equal scores.
  enum class Ties {
    /// A random order. It depends only on the seed, the number of earlier lists and the
    /// positions of the items. A model that gives all items the same score gets the result
    /// of chance.
    kRandom,
    /// Items with lower labels come first, so equal scores never help.
    kWorst,
    /// Items come in the order of the list. If relevant items come first in each list,
    /// equal scores look perfect.
    kPosition
  };

  /// The number of items that count. If the list has fewer, all of them count. Unset: all.
  std::optional<int64_t> k = 10;
  /// Used for lists of scores; retrieved ids are sorted already.
  Ties ties = Ties::kRandom;
  /// If true, a query without a relevant item does not count. If false, it has the value 0,
  /// as in Keras-RS.
  bool skip_queries_without_relevant = false;
  /// The seed of Ties::kRandom.
  uint64_t seed = 0;
  /// If empty, a name such as "recall_at_10", with the value of k, or "recall" without k.
  std::string name = "";
};

namespace detail {

struct RankedList;

/// Defines what a RankingMetric computes.
struct RankingRule {
  /// The value of a list that has a relevant item.
  std::function<double(const RankedList& list)> value_of = {};
  /// The relevance of a label. Unset: 1 if the label is 1 or more, else 0.
  std::function<double(double label)> relevance_of = {};
};

/// The mean over queries of a function of the sorted items. RankingMetricOptions describes
/// its inputs.
class RankingMetric : public SumMetric {
 public:
  /// Takes retrieved ids [queries, retrieved], and a bag of relevant ids for each query.
  void update_ragged(
      const at::Tensor& ids,
      const RaggedFeature& relevant,
      const at::Tensor& weights = {});
  void update_batch(const StepResult& batch) override;
  double result() const override;
  std::unique_ptr<Metric> make_empty() const override {
    return std::unique_ptr<Metric>(new RankingMetric(name(), options_, rule_));
  }
  Better better() const override {
    return Better::kHigher;
  }
  std::optional<int64_t> depth() const override {
    return options_.k;
  }

 protected:
  /// `kind` is the name without k.
  /// Errors:  c10::ValueError for k < 1.
  RankingMetric(
      const std::string& kind,
      RankingMetricOptions options,
      RankingRule rule);

 private:
  void add_scores(const StepResult& batch);
  void add_ids(const StepResult& batch);
  void add(const RankedList& list, bool is_counted);

  RankingMetricOptions options_;
  RankingRule rule_;
};

}  // namespace detail

// snippet: tests/docs/reference_metrics_test.cpp RecallAtK
/// The share of the relevant items that are among the first k. With one relevant item per
/// query, it equals the hit rate.
///
///   RecallAtK recall({.k = 10});
///   recall.update(index->search(queries, 10).ids, next_movies);
///   const double share = recall.result();
///
///   relevant items among the first k / relevant items
///
/// Source:  keras_rs.metrics.RecallAtK; tfrs.metrics.FactorizedTopK, for one k.
class RecallAtK : public detail::RankingMetric {
 public:
  explicit RecallAtK(RankingMetricOptions options = {});
};

// snippet: tests/docs/reference_metrics_test.cpp PrecisionAtK
/// The share of the first k items that are relevant.
///
///   PrecisionAtK precision({.k = 3});
///   precision.update(scores, labels);  // both [queries, list]
///   const double share = precision.result();
///
///   relevant items among the first k / min(k, items in the list)
///
/// Source:  keras_rs.metrics.PrecisionAtK. Others, such as trec_eval, divide by k also if
///          the list is shorter.
class PrecisionAtK : public detail::RankingMetric {
 public:
  explicit PrecisionAtK(RankingMetricOptions options = {});
};

// snippet: tests/docs/reference_metrics_test.cpp HitRateAtK
/// The share of queries that have a relevant item among the first k.
///
///   HitRateAtK hit_rate({.k = 10});
///   hit_rate.update_ragged(found.ids, next_movies);  // bags of movies
///   const double share = hit_rate.result();
///
/// Source:  He et al. 2017, section 4.1, doi:10.1145/3038912.3052569.
class HitRateAtK : public detail::RankingMetric {
 public:
  explicit HitRateAtK(RankingMetricOptions options = {});
};

// snippet: tests/docs/reference_metrics_test.cpp MeanReciprocalRank
/// The mean of 1 / rank of the first relevant item; 0 if it is not among the first k.
///
///   MeanReciprocalRank mrr({.k = std::nullopt});
///   mrr.update(scores, labels);
///   const double mean = mrr.result();
///
/// Source:  keras_rs.metrics.MeanReciprocalRank.
class MeanReciprocalRank : public detail::RankingMetric {
 public:
  explicit MeanReciprocalRank(RankingMetricOptions options = {});
};

// snippet: tests/docs/reference_metrics_test.cpp MeanAveragePrecision
/// The mean over queries of the average precision at the ranks of the relevant items.
///
///   MeanAveragePrecision map({.k = 10});
///   map.update(scores, labels);
///   const double mean = map.result();
///
///   sum over relevant items of the first k, at rank r, of
///       weight * relevant items among the first r / r
///   divided by the weight of all relevant items
///
/// The divisor counts relevant items below rank k, too. So a perfect list with more than k
/// relevant items gets less than 1.
///
/// Source:  keras_rs.metrics.MeanAveragePrecision.
class MeanAveragePrecision : public detail::RankingMetric {
 public:
  explicit MeanAveragePrecision(RankingMetricOptions options = {});
};

/// The gain of an item with a label:
///
///   kExponential   2^label - 1, as in Keras-RS
///   kLinear        label, as in scikit-learn
enum class Gain { kExponential, kLinear };

// snippet: tests/docs/reference_metrics_test.cpp NDCG
/// The normalized discounted cumulative gain (DCG). It is 1 if no other order of the items
/// has a higher DCG.
///
///   NDCG ndcg({.k = 10});
///   ndcg.update(scores, grades);  // both [queries, list]
///   const double gain = ndcg.result();
///
///   DCG of the list / DCG of the same items in the best order,
///   DCG = sum over ranks r <= k of weight * gain(label) / log2(r + 1)
///
/// RankingMetricOptions defines the weight of a query. The relevance of an item in this
/// definition is its gain.
///
/// Errors:  c10::ValueError for exponential gains of labels above 1000.
/// Source:  keras_rs.metrics.NDCG; with linear gains scikit-learn's ndcg_score, which
///          averages over the orders of equal scores.
class NDCG : public detail::RankingMetric {
 public:
  explicit NDCG(
      RankingMetricOptions options = {},
      Gain gain = Gain::kExponential);
};

}  // namespace tessera::training
