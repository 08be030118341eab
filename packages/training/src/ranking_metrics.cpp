// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/ranking_metrics.h>

#include "packages/training/src/metric_inputs.h"
#include "src/common/check.h"
#include "src/common/random_key.h"
#include "src/common/tensor_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <unordered_set>
#include <utility>

namespace tessera::training {

// The list of one query, without the items that are left out.
struct detail::RankedList {
  struct Item {
    double label = 0.0;
    double weight = 1.0;
  };

  std::vector<Item> top = {};  // the first k items, best first
  std::vector<Item> rest = {};  // in any order
};

namespace {

using detail::RankedList;
using RankedItem = RankedList::Item;

// The sums of a RankingMetric.
enum RankingSum : size_t {
  kTotal,  // weight * value
  kWeight,  // the weight of the queries with a relevant item
  kWithRelevant,  // how many queries have a relevant item
  kWithoutRelevant,  // how many queries count, but have none
  kLists,  // all queries so far; seeds the random order of ties
  kNumSums
};

// One step of splitmix64, a bijection that spreads all bits.
uint64_t spread_bits(uint64_t bits) {
  return mix_bits(bits + 0x9E3779B97F4A7C15U);
}

// Sorts items with equal scores. `list` is the number of earlier lists.
class TieOrder {
  using Ties = RankingMetricOptions::Ties;

 public:
  TieOrder(const RankingMetricOptions& options, uint64_t list)
      : ties_(options.ties),
        key_(spread_bits(spread_bits(options.seed) ^ list)) {}

  bool is_before(size_t a, size_t b, const double* labels) const {
    if (ties_ == Ties::kWorst && labels[a] != labels[b]) {
      return labels[a] < labels[b];
    }
    return ties_ == Ties::kRandom
        ? spread_bits(key_ ^ a) < spread_bits(key_ ^ b)
        : a < b;
  }

 private:
  Ties ties_;
  uint64_t key_;
};

bool is_relevant(const RankedItem& item) {
  return item.label >= 1.0;
}

double count_relevant(const std::vector<RankedItem>& items) {
  return static_cast<double>(std::ranges::count_if(items, is_relevant));
}

std::string name_of(
    const std::string& kind,
    const RankingMetricOptions& options) {
  return name_or(
      options.name,
      options.k ? kind + "_at_" + std::to_string(*options.k) : kind);
}

// The number of the first k items of a list.
size_t count_top(std::optional<int64_t> k, size_t size) {
  return k ? std::min(size, static_cast<size_t>(*k)) : size;
}

double discount(size_t index) {
  return 1.0 / std::log2(static_cast<double>(index) + 2.0);
}

double recall_of(const RankedList& list) {
  const double found = count_relevant(list.top);
  return found / (found + count_relevant(list.rest));
}

double precision_of(const RankedList& list) {
  return list.top.empty()
      ? 0.0
      : count_relevant(list.top) / static_cast<double>(list.top.size());
}

double hit_of(const RankedList& list) {
  return count_relevant(list.top) > 0.0 ? 1.0 : 0.0;
}

double reciprocal_rank_of(const RankedList& list) {
  const auto first = std::ranges::find_if(list.top, is_relevant);
  return first == list.top.end()
      ? 0.0
      : 1.0 / static_cast<double>(first - list.top.begin() + 1);
}

double average_precision_of(const RankedList& list) {
  double found = 0.0;
  double precision = 0.0;
  double weight = 0.0;  // of all relevant items
  for (size_t i = 0; i < list.top.size(); ++i) {
    const RankedItem& item = list.top[i];
    if (is_relevant(item)) {
      found += 1.0;
      precision += item.weight * (found / static_cast<double>(i + 1));
      weight += item.weight;
    }
  }
  for (const RankedItem& item : list.rest) {
    weight += is_relevant(item) ? item.weight : 0.0;
  }
  return precision / weight;
}

// `name` is the name of the metric.
double exponential_gain(double label, const std::string& name) {
  constexpr double kMaxLabel = 1000.0;  // 2^1024 is infinite
  TESSERA_CHECK_VALUE(
      label <= kMaxLabel,
      "[Metric '{}'] labels must be grades of at most {}, but got {}. For counts, pass Gain::kLinear to NDCG.",
      name,
      kMaxLabel,
      label);
  return std::exp2(label) - 1.0;
}

template <class GainOf>
double normalized_gain(
    const RankedList& list,
    std::optional<int64_t> k,
    const GainOf& gain_of) {
  const auto gain = [&](const RankedItem& item) {
    return item.weight * gain_of(item.label);
  };
  double reached = 0.0;
  std::vector<double> gains;
  for (size_t i = 0; i < list.top.size(); ++i) {
    gains.push_back(gain(list.top[i]));
    reached += gains.back() * discount(i);
  }
  for (const RankedItem& item : list.rest) {
    gains.push_back(gain(item));
  }
  // Missed relevant ids are in `rest`, so the best list may be longer than `top`.
  const size_t count = count_top(k, gains.size());
  std::partial_sort(
      gains.begin(),
      gains.begin() + static_cast<std::ptrdiff_t>(count),
      gains.end(),
      std::greater<>());
  double best = 0.0;
  for (size_t i = 0; i < count; ++i) {
    best += gains[i] * discount(i);
  }
  return reached / best;
}

detail::RankingRule gain_rule(const RankingMetricOptions& options, Gain gain) {
  std::function<double(double)> gain_of = [](double label) { return label; };
  if (gain == Gain::kExponential) {
    gain_of = [name = name_of("ndcg", options)](double label) {
      return exponential_gain(label, name);
    };
  }
  return {
      .value_of =
          [k = options.k, gain_of](const RankedList& list) {
            return normalized_gain(list, k, gain_of);
          },
      .relevance_of = gain_of};
}

}  // namespace

namespace detail {

RankingMetric::RankingMetric(
    const std::string& kind,
    RankingMetricOptions options,
    RankingRule rule)
    : SumMetric(name_of(kind, options), kNumSums),
      options_(std::move(options)),
      rule_(std::move(rule)) {
  options_.name = name();
  if (!rule_.relevance_of) {
    rule_.relevance_of = [](double label) { return label >= 1.0 ? 1.0 : 0.0; };
  }
  TESSERA_CHECK_VALUE(
      !options_.k || *options_.k >= 1,
      "[Metric '{}'] k must be >= 1, but got {}. Set it to the number of items that count, or leave it unset for all.",
      name(),
      options_.k.value_or(0));
}

void RankingMetric::update_ragged(
    const at::Tensor& ids,
    const RaggedFeature& relevant,
    const at::Tensor& weights) {
  TESSERA_CHECK_VALUE(
      relevant.row_splits.defined(),
      "[Metric '{}'] expected a bag of relevant ids for each query, but got undefined row_splits. Make it with RaggedFeature::from_lengths().",
      name());
  update_batch(
      {.predictions = ids,
       .labels = relevant.values,
       .weights = weights,
       .label_splits = relevant.row_splits});
}

void RankingMetric::update_batch(const StepResult& batch) {
  const at::Tensor& predictions = batch.predictions;
  TESSERA_CHECK_VALUE(
      predictions.defined(),
      "[Metric '{}'] expected predictions, but got an undefined tensor. Pass scores or retrieved ids, or return them from the step.",
      name());
  if (at::isFloatingType(predictions.scalar_type())) {
    add_scores(batch);
  } else {
    add_ids(batch);
  }
}

void RankingMetric::add_scores(const StepResult& batch) {
  const std::string where = where_of(name());
  TESSERA_CHECK_VALUE(
      !batch.label_splits.defined(),
      "{} bags of labels belong to retrieved ids, int32 or int64, but the predictions are scores: {}. Pass labels [queries, list], or ids.",
      where,
      describe(batch.predictions));
  const ScoreLists lists = read_score_lists(batch, where);
  // Raises an error for labels without a finite relevance, before anything is changed.
  for (const double label : lists.labels) {
    rule_.relevance_of(label);
  }
  std::vector<size_t> order;
  for (size_t query = 0; query < lists.queries; ++query) {
    const size_t begin = query * lists.list;
    const double* scores = lists.scores.data() + begin;
    const double* labels = lists.labels.data() + begin;
    const double* weights = lists.weights.data() + begin;
    order.clear();
    for (size_t i = 0; i < lists.list; ++i) {
      if (labels[i] >= 0.0 && weights[i] > 0.0) {
        order.push_back(i);
      }
    }
    const TieOrder ties(options_, static_cast<uint64_t>(sums()[kLists]));
    const size_t count = count_top(options_.k, order.size());
    const auto top = order.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(order.begin(), top, order.end(), [&](size_t a, size_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b]
                                    : ties.is_before(a, b, labels);
    });
    // The rest has no order after partial_sort(), but sums need a fixed one.
    std::sort(top, order.end());
    RankedList list;
    for (size_t i = 0; i < order.size(); ++i) {
      (i < count ? list.top : list.rest)
          .push_back({.label = labels[order[i]], .weight = weights[order[i]]});
    }
    add(list, !order.empty());
  }
}

void RankingMetric::add_ids(const StepResult& batch) {
  const std::string where = where_of(name());
  const RetrievedIds ids = read_retrieved_ids(batch, where);
  const std::vector<double> weights =
      read_weights(batch.weights, ids.queries(), where);
  const size_t count = count_top(options_.k, ids.per_query);
  std::unordered_set<int64_t> missing;
  std::unordered_set<int64_t> seen;
  for (size_t query = 0; query < ids.queries(); ++query) {
    const double weight = weights[query];
    const std::span<const int64_t> relevant = ids.relevant_of(query);
    missing = {relevant.begin(), relevant.end()};
    seen.clear();
    RankedList list;
    for (const int64_t id : ids.row(query).first(count)) {
      if (weight > 0.0 && id >= 0 && seen.insert(id).second) {
        const bool is_hit = missing.erase(id) > 0;
        list.top.push_back({.label = is_hit ? 1.0 : 0.0, .weight = weight});
      }
    }
    if (weight > 0.0) {
      list.rest.assign(missing.size(), {.label = 1.0, .weight = weight});
    }
    add(list, weight > 0.0);
  }
}

void RankingMetric::add(const RankedList& list, bool is_counted) {
  sums()[kLists] += 1.0;
  double relevance = 0.0;
  double weighted = 0.0;
  for (const auto* part : {&list.top, &list.rest}) {
    for (const RankedItem& item : *part) {
      relevance += rule_.relevance_of(item.label);
      weighted += item.weight * rule_.relevance_of(item.label);
    }
  }
  if (relevance > 0.0) {
    const double weight = weighted / relevance;
    sums()[kTotal] += weight * rule_.value_of(list);
    sums()[kWeight] += weight;
    sums()[kWithRelevant] += 1.0;
  } else if (is_counted && !options_.skip_queries_without_relevant) {
    sums()[kWithoutRelevant] += 1.0;
  }
}

double RankingMetric::result() const {
  const double with = sums()[kWithRelevant];
  const double without = sums()[kWithoutRelevant];
  if (with > 0.0) {
    return sums()[kTotal] /
        (sums()[kWeight] + without * (sums()[kWeight] / with));
  }
  return without > 0.0 ? 0.0 : kUndefined;
}

}  // namespace detail

RecallAtK::RecallAtK(RankingMetricOptions options)
    : RankingMetric("recall", std::move(options), {recall_of}) {}

PrecisionAtK::PrecisionAtK(RankingMetricOptions options)
    : RankingMetric("precision", std::move(options), {precision_of}) {}

HitRateAtK::HitRateAtK(RankingMetricOptions options)
    : RankingMetric("hit_rate", std::move(options), {hit_of}) {}

MeanReciprocalRank::MeanReciprocalRank(RankingMetricOptions options)
    : RankingMetric("mrr", std::move(options), {reciprocal_rank_of}) {}

MeanAveragePrecision::MeanAveragePrecision(RankingMetricOptions options)
    : RankingMetric("map", std::move(options), {average_precision_of}) {}

NDCG::NDCG(RankingMetricOptions options, Gain gain)
    : RankingMetric("ndcg", options, gain_rule(options, gain)) {}

}  // namespace tessera::training
