// SPDX-License-Identifier: Apache-2.0
// Metrics of lists of scores. retrieval_metrics_test.cpp has those of retrieved ids.
#include <tessera/training/ranking_metrics.h>

#include "packages/training/tests/metric_test_util.h"

namespace tessera::training::ranking_metrics_test {

using Maker = std::function<std::unique_ptr<Metric>(std::optional<int64_t>)>;

template <class Kind>
std::unique_ptr<Metric> make(std::optional<int64_t> k) {
  return std::make_unique<Kind>(RankingMetricOptions{.k = k});
}

const std::map<std::string, Maker> kMetrics{
    {"ndcg",
     [](auto k) {
       return std::make_unique<NDCG>(RankingMetricOptions{.k = k});
     }},
    {"linear_ndcg",
     [](auto k) {
       return std::make_unique<NDCG>(
           RankingMetricOptions{.k = k}, Gain::kLinear);
     }},
    {"recall", make<RecallAtK>},
    {"precision", make<PrecisionAtK>},
    {"mrr", make<MeanReciprocalRank>},
    {"hit_rate", make<HitRateAtK>},
    {"map", make<MeanAveragePrecision>}};

StepResult batch_of(const Json& json) {
  const auto shape = json["shape"].get<std::vector<int64_t>>();
  at::Tensor weights = golden_doubles(json["weights"]);
  if (weights.defined() && weights.numel() > shape[0]) {
    weights = weights.view(shape);
  }
  return {
      .predictions = golden_doubles(json["scores"]).view(shape),
      .labels = golden_doubles(json["labels"]).view(shape),
      .weights = weights};
}

std::optional<int64_t> k_of(const Json& json) {
  return json["k"].is_null() ? std::nullopt
                             : std::optional(json["k"].get<int64_t>());
}

TEST(RankingMetricsTest, MatchKerasRsAndScikitLearn) {
  const Json golden = read_golden("ranking.json");
  ASSERT_EQ(golden["metrics"].size(), 10U);
  int compared = 0;
  for (const Json& json : golden["metrics"]) {
    const StepResult batch = batch_of(json);
    for (const Json& result : json["results"]) {
      SCOPED_TRACE(json["name"].get<std::string>() + " " + result.dump());
      const auto metric = kMetrics.at(result["metric"])(k_of(result));
      metric->update_batch(batch);
      EXPECT_NEAR(metric->result(), result["result"].get<double>(), 1e-12);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 10 * 4 * 5 + 4 * 4);
}

TEST(RankingMetricsTest, DoNotDependOnTheSplitIntoBatches) {
  const Json golden = read_golden("ranking.json");
  for (const Json& json : golden["metrics"]) {
    for (const auto& [kind, make] : kMetrics) {
      SCOPED_TRACE(json["name"].get<std::string>() + " " + kind);
      expect_independent_of_batches(*make(3), batch_of(json));
    }
  }
  // Random orders of ties do not, either.
  const at::Tensor labels = at::randint(0, 3, {40, 12}).to(at::kFloat);
  expect_independent_of_batches(
      NDCG({.k = 5}),
      {.predictions = at::zeros({40, 12}), .labels = labels},
      /*numbers_lists=*/true);
}

TEST(RankingMetricsTest, HitRateCountsListsWithAHit) {
  HitRateAtK hit_rate({.k = 2});
  hit_rate.update(
      floats({3, 2, 1, 1, 2, 3}).view({2, 3}),
      floats({0, 1, 1, 1, 0, 0}).view({2, 3}));
  EXPECT_EQ(hit_rate.name(), "hit_rate_at_2");
  EXPECT_EQ(hit_rate.result(), 0.5);
  hit_rate.update(
      floats({3, 2, 1}).view({1, 3}),
      int64s({2, 0, 0}).view({1, 3}),
      floats({2}));
  EXPECT_EQ(hit_rate.result(), 3.0 / 4.0);
}

// The mean over all orders of equal scores, as scikit-learn computes it.
TEST(RankingMetricsTest, RandomTiesAverageOverAllOrders) {
  const Json ties = read_golden("ranking.json")["ties"];
  const auto shape = ties["shape"].get<std::vector<int64_t>>();
  const at::Tensor scores = golden_doubles(ties["scores"]).view(shape);
  const at::Tensor labels = golden_doubles(ties["labels"]).view(shape);
  constexpr int64_t kLists = 40'000;
  for (int64_t i = 0; i < shape[0]; ++i) {
    NDCG ndcg({.k = 4}, Gain::kLinear);
    ndcg.update(
        scores[i].expand({kLists, shape[1]}),
        labels[i].expand({kLists, shape[1]}));
    // The standard deviation of a list is at most 0.5, so this is 4 of them.
    EXPECT_NEAR(
        ndcg.result(), ties["linear_ndcg"][i].get<double>(), 4 * 0.5 / 200.0);
  }
}

TEST(RankingMetricsTest, TiesHaveTheOrderOfTheOption) {
  const at::Tensor scores = at::zeros({1000, 4});
  const at::Tensor labels = floats({1, 0, 0, 0}).expand({1000, 4});
  using Ties = RankingMetricOptions::Ties;
  const auto result = [&](Ties ties, uint64_t seed = 0) {
    RecallAtK recall({.k = 1, .ties = ties, .seed = seed});
    recall.update(scores, labels);
    return recall.result();
  };
  EXPECT_EQ(result(Ties::kPosition), 1.0);
  EXPECT_EQ(result(Ties::kWorst), 0.0);
  EXPECT_NEAR(result(Ties::kRandom), 0.25, 4 * 0.433 / std::sqrt(1000.0));
  EXPECT_EQ(result(Ties::kRandom), result(Ties::kRandom));
  EXPECT_NE(result(Ties::kRandom, 1), result(Ties::kRandom, 2));
}

TEST(RankingMetricsTest, ListsWithoutRelevantItemsCountAsTheOptionSays) {
  const at::Tensor scores = floats({2, 1, 2, 1}).view({2, 2});
  const at::Tensor labels = floats({1, 0, 0, 0}).view({2, 2});
  RecallAtK counted({.k = 1});
  RecallAtK left_out({.k = 1, .skip_queries_without_relevant = true});
  for (RecallAtK* metric : {&counted, &left_out}) {
    metric->update(scores, labels);
  }
  EXPECT_EQ(counted.result(), 0.5);
  EXPECT_EQ(left_out.result(), 1.0);
  // One class only.
  counted.reset();
  left_out.reset();
  for (RecallAtK* metric : {&counted, &left_out}) {
    metric->update(scores, at::zeros({2, 2}));
  }
  EXPECT_EQ(counted.result(), 0.0);
  EXPECT_TRUE(std::isnan(left_out.result()));
  counted.reset();
  counted.update(scores, at::ones({2, 2}));
  EXPECT_EQ(counted.result(), 0.5);
  // Grades below 1 are a gain, but not relevant.
  counted.reset();
  counted.update(scores, at::full({2, 2}, 0.5));
  EXPECT_EQ(counted.result(), 0.0);
  NDCG ndcg;
  ndcg.update(scores, at::full({2, 2}, 0.5));
  EXPECT_DOUBLE_EQ(ndcg.result(), 1.0);
}

TEST(RankingMetricsTest, EmptyBatchesAndListsDoNotCount) {
  for (const auto& [kind, make] : kMetrics) {
    SCOPED_TRACE(kind);
    const auto metric = make(10);
    metric->update(at::empty({0, 5}), at::empty({0, 5}));
    metric->update(at::empty({3, 0}), at::empty({3, 0}));
    metric->update(at::rand({2, 3}), at::full({2, 3}, -1));  // all left out
    metric->update(
        at::rand({2, 3}), at::ones({2, 3}), at::zeros({2}));  // all weights 0
    EXPECT_TRUE(std::isnan(metric->result()));
    metric->update(floats({1}).view({1, 1}), floats({1}).view({1, 1}));
    EXPECT_EQ(metric->result(), 1.0);
    EXPECT_EQ(metric->better(), Better::kHigher);
    EXPECT_EQ(metric->depth(), 10);
    EXPECT_EQ(make(std::nullopt)->depth(), std::nullopt);
  }
}

TEST(RankingMetricsTest, TakeInfiniteScoresAndEveryFloat) {
  const at::Tensor labels = int64s({0, 1, 0}).view({1, 3});
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    MeanReciprocalRank mrr({.k = std::nullopt});
    mrr.update(
        floats({-kInfinity, 1, kInfinity}).view({1, 3}).to(dtype), labels);
    EXPECT_EQ(mrr.name(), "mrr");
    EXPECT_EQ(mrr.result(), 0.5);
  }
}

TEST(RankingMetricsTest, RefuseBadBatchesAndDoNotCountThem) {
  NDCG ndcg;
  const at::Tensor scores = at::rand({2, 3});
  const at::Tensor labels = at::ones({2, 3});
  EXPECT_EQ(ndcg.name(), "ndcg_at_10");
  expect_refusals<std::array<at::Tensor, 3>>(
      {{{at::Tensor(), labels}, "predictions, but got an undefined tensor"},
       {{scores},
        "[queries, list], but got Float of shape [2, 3] and no tensor"},
       {{scores, at::ones({2, 4})}, "and Float of shape [2, 4]"},
       {{scores[0], labels[0]}, "lists of shape [queries, list]"},
       {{floats({1, kNan}).view({1, 2}), at::ones({1, 2})},
        "[Metric 'ndcg_at_10'] predictions must be numbers, but some are NaN"},
       {{at::ones({1, 2}), floats({1, kNan}).view({1, 2})},
        "labels must be numbers, but some are NaN"},
       {{at::ones({1, 2}), floats({1, kInfinity}).view({1, 2})},
        "labels must be finite, but got inf"},
       {{at::ones({1, 2}), floats({1, 1001}).view({1, 2})},
        "grades of at most 1000, but got 1001"},
       {{scores, labels, floats({1, -1})}, ">= 0, but got -1"},
       {{scores, labels, floats({1, kInfinity})}, "but got inf"},
       {{scores, labels, floats({1, 1, 1})},
        "weights must have shape [2] or [2, 3], but got [3]"},
       {{scores.to(at::kComplexFloat), labels}, "predictions"}},
      [&](const auto& x) { ndcg.update(x[0], x[1], x[2]); });
  EXPECT_VALUE_ERROR(
      ndcg.update_ragged(
          scores, {.values = int64s({1}), .row_splits = int64s({0, 0, 1})}),
      "but the predictions are scores: Float of shape [2, 3]");
  EXPECT_VALUE_ERROR(ndcg.load_state(floats({1})), "a float64 tensor [n]");
  EXPECT_VALUE_ERROR(
      ndcg.load_state(at::ones({2}, at::kDouble)), "5 numbers, but got 2");
  EXPECT_TRUE(std::isnan(ndcg.result()));

  NDCG linear({}, Gain::kLinear);
  linear.update(at::ones({1, 2}), floats({1, 1001}).view({1, 2}));
  EXPECT_VALUE_ERROR(NDCG({.k = 0}), "k must be >= 1, but got 0");
  EXPECT_VALUE_ERROR(
      linear.Metric::update_batch(
          {.predictions = scores, .label_splits = int64s({0})}),
      "one label for each example, but got bags of labels");
}

}  // namespace tessera::training::ranking_metrics_test
