// SPDX-License-Identifier: Apache-2.0
// Metrics of retrieved ids: CatalogueCoverage, and those of ranking_metrics.h.
#include <tessera/training/ranking_metrics.h>
#include <tessera/training/retrieval_metrics.h>

#include "packages/training/tests/metric_test_util.h"

namespace tessera::training::retrieval_metrics_test {

TEST(RetrievalMetricsTest, MatchTfrsFactorizedTopK) {
  const Json json = read_golden("ranking.json")["retrieved"];
  const at::Tensor ids = golden_int64s(json["ids"])
                             .view(json["shape"].get<std::vector<int64_t>>());
  const at::Tensor labels = golden_int64s(json["labels"]);
  ASSERT_EQ(json["results"].size(), 6U);
  for (const Json& result : json["results"]) {
    const RankingMetricOptions options{.k = result["k"]};
    RecallAtK recall(options);
    HitRateAtK hit_rate(options);
    for (Metric* metric : std::initializer_list<Metric*>{&recall, &hit_rate}) {
      metric->update(
          ids,
          labels,
          result["weighted"] ? golden_doubles(json["weights"]) : at::Tensor());
      // TFRS computes in float32.
      EXPECT_NEAR(metric->result(), result["result"].get<double>(), 1e-6);
    }
  }
}

// The formulas, written out for bags of relevant ids.
struct Reference {
  double recall = 0.0, precision = 0.0, hit_rate = 0.0;
  double mrr = 0.0, map = 0.0, ndcg = 0.0;

  Reference(
      const std::vector<int64_t>& ids,
      const std::set<int64_t>& relevant,
      size_t k) {
    if (relevant.empty()) {
      return;
    }
    double found = 0.0, dcg = 0.0, best = 0.0;
    const size_t count = std::min(k, ids.size());
    for (size_t i = 0; i < count; ++i) {
      const auto rank = static_cast<double>(i + 1);
      if (relevant.contains(ids[i])) {
        found += 1.0;
        mrr = mrr == 0.0 ? 1.0 / rank : mrr;
        map += found / rank;
        dcg += 1.0 / std::log2(rank + 1.0);
      }
    }
    for (size_t i = 0; i < std::min(k, relevant.size()); ++i) {
      best += 1.0 / std::log2(static_cast<double>(i) + 2.0);
    }
    const auto all = static_cast<double>(relevant.size());
    recall = found / all;
    precision = found / static_cast<double>(count);
    hit_rate = found > 0.0 ? 1.0 : 0.0;
    map /= all;
    ndcg = dcg / best;
  }
};

TEST(RetrievalMetricsTest, OfBagsMatchTheirFormulas) {
  constexpr int64_t kQueries = 30;
  std::vector<at::Tensor> rows;
  std::vector<int64_t> values;
  std::vector<int64_t> splits{0};
  std::vector<std::set<int64_t>> relevant(kQueries);
  for (int64_t i = 0; i < kQueries; ++i) {
    rows.push_back(at::randperm(20, at::kLong).slice(0, 0, 8));
    for (int64_t j = 0; j < i % 6; ++j) {  // every sixth bag is empty
      const int64_t id = (i * 7 + j * 3) % 25;
      values.insert(values.end(), {id, id});  // counts once
      relevant[i].insert(id);
    }
    splits.push_back(static_cast<int64_t>(values.size()));
  }
  const at::Tensor ids = at::stack(rows);
  const StepResult batch{
      .predictions = ids,
      .labels = at::tensor(values, at::kLong),
      .label_splits = at::tensor(splits, at::kLong)};
  for (const int64_t k : {1, 3, 8, 50}) {
    SCOPED_TRACE(k);
    Reference mean({}, {}, 1);
    for (int64_t i = 0; i < kQueries; ++i) {
      const int64_t* row = ids.const_data_ptr<int64_t>() + 8 * i;
      const Reference one({row, row + 8}, relevant[i], k);
      mean.recall += one.recall / kQueries;
      mean.precision += one.precision / kQueries;
      mean.hit_rate += one.hit_rate / kQueries;
      mean.mrr += one.mrr / kQueries;
      mean.map += one.map / kQueries;
      mean.ndcg += one.ndcg / kQueries;
    }
    const auto expect = [&](detail::RankingMetric&& metric, double expected) {
      SCOPED_TRACE(metric.name());
      metric.update_ragged(
          ids, {.values = batch.labels, .row_splits = batch.label_splits});
      EXPECT_NEAR(metric.result(), expected, 1e-14);
      expect_independent_of_batches(metric, batch);
    };
    const RankingMetricOptions options{.k = k};
    expect(RecallAtK(options), mean.recall);
    expect(PrecisionAtK(options), mean.precision);
    expect(HitRateAtK(options), mean.hit_rate);
    expect(MeanReciprocalRank(options), mean.mrr);
    expect(MeanAveragePrecision(options), mean.map);
    expect(NDCG({.k = k}), mean.ndcg);
  }
}

TEST(RetrievalMetricsTest, MissingAndRepeatedIdsDoNotCount) {
  const at::Tensor ids = int64s({7, 7, -1, 3, -1, -1, -1, -1}).view({2, 4});
  const RaggedFeature relevant{
      .values = int64s({3, 7, 9, 1}), .row_splits = int64s({0, 3, 4})};
  RecallAtK recall({.k = 4});
  PrecisionAtK precision({.k = 4});
  recall.update_ragged(ids, relevant);
  precision.update_ragged(ids, relevant);
  EXPECT_DOUBLE_EQ(recall.result(), (2.0 / 3.0 + 0.0) / 2.0);
  // 7 and 3 of the two different ids are relevant. The other query found nothing.
  EXPECT_DOUBLE_EQ(precision.result(), (2.0 / 2.0 + 0.0) / 2.0);
}

TEST(RetrievalMetricsTest, QueriesWithoutRelevantIdsCountAsTheOptionSays) {
  const at::Tensor ids = int64s({1, -1}).view({2, 1});
  const RaggedFeature relevant{
      .values = int64s({1}), .row_splits = int64s({0, 1, 1})};
  RecallAtK counted, left_out({.skip_queries_without_relevant = true});
  counted.update_ragged(ids, relevant);
  left_out.update_ragged(ids, relevant);
  EXPECT_EQ(counted.result(), 0.5);
  EXPECT_EQ(left_out.result(), 1.0);
  // The same without any relevant id.
  counted.reset();
  counted.update_ragged(
      ids,
      {.values = at::empty({0}, at::kLong), .row_splits = int64s({0, 0, 0})});
  EXPECT_EQ(counted.result(), 0.0);
}

TEST(RetrievalMetricsTest, RecallAtKCountsTheLabelsAmongTheFirstKIds) {
  const auto large = int64_t{1} << 60;  // large + 1 rounds to it as a double
  const at::Tensor ids =
      at::tensor({large, int64_t{7}, large + 1, int64_t{7}, int64_t{7}, -1L})
          .view({3, 2});
  const at::Tensor labels = int64s({large, 7, 3}).view({3, 1});
  RecallAtK first({.k = 1});
  RecallAtK all;
  for (RecallAtK* metric : {&first, &all}) {
    metric->update(ids, labels);
  }
  EXPECT_EQ(first.name(), "recall_at_1");
  EXPECT_DOUBLE_EQ(first.result(), 1.0 / 3.0);
  EXPECT_DOUBLE_EQ(all.result(), 2.0 / 3.0);
  all.update(
      int64s({1, 2}).view({2, 1}).to(at::kInt), int64s({1, 1}), floats({4, 1}));
  EXPECT_DOUBLE_EQ(all.result(), 6.0 / 8.0);
  all.update(at::empty({0, 5}, at::kLong), at::empty({0}, at::kLong));
  EXPECT_DOUBLE_EQ(all.result(), 6.0 / 8.0);
  EXPECT_EQ(all.make_empty()->name(), "recall_at_10");
  EXPECT_EQ(all.better(), Better::kHigher);

  EXPECT_VALUE_ERROR(RecallAtK({.k = 0}), "k must be >= 1, but got 0");
  EXPECT_VALUE_ERROR(all.update({}, labels), "but got an undefined tensor");
  EXPECT_VALUE_ERROR(
      all.update(ids.to_sparse(), labels),
      "predictions must be a dense tensor");
  EXPECT_VALUE_ERROR(
      all.update(ids.to(at::kMeta), labels), "predictions must be a dense");
  EXPECT_VALUE_ERROR(all.update(labels[0], labels), "shape [n, retrieved]");
  EXPECT_VALUE_ERROR(all.update(ids, {}), "labels, but got an undefined");
  EXPECT_VALUE_ERROR(all.update(ids, int64s({1})), "got 3 predictions and 1");
  EXPECT_VALUE_ERROR(
      all.update(ids.to(at::kShort), labels), "ids of dtype int32 or int64");
  EXPECT_VALUE_ERROR(
      all.update(ids, labels.to(at::kFloat)), "ids of dtype int32 or int64");
  EXPECT_VALUE_ERROR(
      all.update(ids, int64s({1, -1, 2})), "ids >= 0, but got -1");
  EXPECT_VALUE_ERROR(
      all.update(ids, labels, floats({1, -1, 1})), ">= 0, but got -1");
  EXPECT_VALUE_ERROR(
      all.update_ragged(ids, {.values = int64s({1})}), "undefined row_splits");
  for (const at::Tensor& splits :
       {int64s({0, 1}),
        int64s({1, 1, 1, 1}),
        int64s({0, 2, 1, 1}),
        int64s({0, 1, 1, 2})}) {
    EXPECT_VALUE_ERROR(
        all.update_ragged(ids, {.values = int64s({1}), .row_splits = splits}),
        "label_splits must have 4 numbers, begin with 0");
  }
  EXPECT_DOUBLE_EQ(all.result(), 6.0 / 8.0);  // refused batches don't count
}

TEST(RetrievalMetricsTest, CoverageCountsDifferentIds) {
  const auto large = (int64_t{1} << 60) + 1;
  CatalogueCoverage coverage({.catalogue_size = 8, .k = 2});
  EXPECT_EQ(coverage.name(), "coverage_at_2");
  EXPECT_EQ(coverage.depth(), 2);
  EXPECT_EQ(coverage.better(), Better::kHigher);
  const at::Tensor ids =
      int64s({1, 2, 3, 2, large, 9, -1, -1, -1, 4, -1, 5}).view({4, 3});
  coverage.update(ids);
  EXPECT_EQ(coverage.result(), 4.0 / 8.0);  // 1, 2, large, 4
  coverage.update(ids, {}, floats({0, 0, 0, 0}));
  coverage.update(int64s({6}).view({1, 1}).to(at::kInt), {}, floats({0.5F}));
  EXPECT_EQ(coverage.result(), 5.0 / 8.0);
  expect_independent_of_batches(
      coverage, {.predictions = ids, .labels = int64s({1, 1, 1, 1})});
  // An empty list still counts as a query.
  coverage.reset();
  coverage.update(at::empty({0, 3}, at::kLong));
  EXPECT_TRUE(std::isnan(coverage.result()));
  coverage.update(at::full({1, 2}, -1, at::kLong));
  EXPECT_EQ(coverage.result(), 0.0);
}

TEST(RetrievalMetricsTest, CoverageRefusesBadInput) {
  CatalogueCoverage coverage({.catalogue_size = 2, .k = 5});
  coverage.update(int64s({1}).view({1, 1}));
  EXPECT_VALUE_ERROR(
      coverage.update(int64s({1, 2, 3}).view({1, 3})),
      "at most 2 different ids, the size of the catalogue, but got 3");
  EXPECT_VALUE_ERROR(coverage.update({}), "but got an undefined tensor");
  EXPECT_VALUE_ERROR(
      coverage.update(floats({1}).view({1, 1})), "ids of dtype int32 or int64");
  EXPECT_VALUE_ERROR(
      coverage.update(int64s({1}).view({1, 1}), {}, floats({-1})), ">= 0");
  EXPECT_VALUE_ERROR(coverage.load_state(at::empty({0})), "float64 tensor [n]");
  EXPECT_VALUE_ERROR(
      coverage.load_state(at::tensor({2.0}, at::kDouble)),
      "the state of a CatalogueCoverage");
  EXPECT_EQ(coverage.result(), 0.5);
  EXPECT_VALUE_ERROR(CatalogueCoverage({}), "catalogue_size must be >= 1");
  EXPECT_VALUE_ERROR(
      CatalogueCoverage({.catalogue_size = 1, .k = 0}), "k must be >= 1");
}

}  // namespace tessera::training::retrieval_metrics_test
