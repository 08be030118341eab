// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/classification_metrics.h>

#include "packages/training/tests/metric_test_util.h"

namespace tessera::training::classification_metrics_test {

std::map<std::string, std::shared_ptr<Metric>> all_metrics() {
  return {
      {"average_precision", std::make_shared<AveragePrecision>()},
      {"gauc", std::make_shared<GroupedAUC>()},
      {"normalized_entropy", std::make_shared<NormalizedEntropy>()}};
}

StepResult batch_of(const Json& json) {
  return {
      .predictions = golden_doubles(json["scores"]),
      .labels = golden_doubles(json["labels"]),
      .weights = golden_doubles(json["weights"]),
      .groups = golden_int64s(json["groups"])};
}

TEST(ClassificationMetricsTest, MatchScikitLearnForAnyBatchSize) {
  const Json golden = read_golden("ranking.json")["classes"];
  ASSERT_EQ(golden.size(), 6U);
  for (const Json& json : golden) {
    SCOPED_TRACE(json["name"].get<std::string>());
    for (const auto& [name, metric] : all_metrics()) {
      expect_independent_of_batches(*metric, batch_of(json));
      if (json["results"].contains(name)) {
        metric->update_batch(batch_of(json));
        EXPECT_EQ(metric->name(), name);
        EXPECT_NEAR(
            metric->result(), json["results"][name].get<double>(), 1e-12)
            << name;
      }
    }
  }
}

TEST(ClassificationMetricsTest, AveragePrecisionOfOneClass) {
  AveragePrecision metric;
  metric.update(floats({1, 2}), int64s({0, 0}));
  EXPECT_TRUE(std::isnan(metric.result()));
  metric.update(floats({3}), int64s({1}), floats({0}));
  EXPECT_TRUE(std::isnan(metric.result()));
  metric.reset();
  metric.update(floats({1, 2}), int64s({1, 1}));
  EXPECT_EQ(metric.result(), 1.0);
  // All scores equal: the share of positives.
  metric.update(at::ones({2}) * 2, int64s({0, 0}));
  metric.update(floats({2}), int64s({1}));
  EXPECT_DOUBLE_EQ(metric.result(), 2.0 / 3.0 * (2.0 / 4.0) + 1.0 / 3.0 * 0.6);
  EXPECT_EQ(metric.better(), Better::kHigher);
  EXPECT_FALSE(metric.is_cheap());
}

// GAUC against its formula: all pairs within a group.
TEST(ClassificationMetricsTest, GroupedAUCMatchesItsFormula) {
  const std::vector<double> scores{.1, .4, .4, .2, .9, .3, .3, .5, .6, .7};
  const std::vector<int64_t> labels{0, 1, 0, 1, 1, 0, 1, 1, 1, 0};
  const std::vector<int64_t> groups{5, 5, 5, 5, 2, 2, 2, 8, 8, -4};
  const std::vector<double> weights{1, 2, 3, .5, 1, 1, 2, 4, 4, 9};
  double total = 0.0, impressions = 0.0;
  for (const int64_t group : {-4, 2, 5, 8}) {
    double pairs = 0.0, right = 0.0, size = 0.0;
    for (size_t i = 0; i < scores.size(); ++i) {
      size += groups[i] == group ? weights[i] : 0.0;
      for (size_t j = 0; j < scores.size(); ++j) {
        if (groups[i] == group && groups[j] == group && labels[i] == 1 &&
            labels[j] == 0) {
          const double weight = weights[i] * weights[j];
          pairs += weight;
          right += weight *
              (scores[i] > scores[j]       ? 1.0
                   : scores[i] < scores[j] ? 0.0
                                           : 0.5);
        }
      }
    }
    if (pairs > 0.0) {
      total += size * right / pairs;
      impressions += size;
    }
  }
  GroupedAUC gauc;
  gauc.update_batch(
      {.predictions = at::tensor(scores, at::kDouble),
       .labels = at::tensor(labels, at::kLong),
       .weights = at::tensor(weights, at::kDouble),
       .groups = at::tensor(groups, at::kLong)});
  EXPECT_NEAR(gauc.result(), total / impressions, 1e-14);
  EXPECT_EQ(gauc.better(), Better::kHigher);
}

TEST(ClassificationMetricsTest, GroupsWithOneClassAreLeftOut) {
  const auto large = int64_t{1} << 60;  // large + 1 rounds to it as a double
  GroupedAUC gauc;
  EXPECT_TRUE(std::isnan(gauc.result()));
  gauc.update_batch(
      {.predictions = floats({1, 2, 3}),
       .labels = int64s({1, 1, 0}),
       .groups = int64s({large, large, large + 1})});
  EXPECT_TRUE(std::isnan(gauc.result()));
  const auto resumed = gauc.make_empty();
  resumed->load_state(gauc.state());
  EXPECT_TRUE(std::isnan(resumed->result()));
  resumed->update_batch(
      {.predictions = floats({0}),
       .labels = int64s({0}),
       .groups = int64s({large})});
  EXPECT_EQ(resumed->result(), 1.0);
}

TEST(ClassificationMetricsTest, NormalizedEntropyOfTheMeanIsOne) {
  NormalizedEntropy entropy;
  EXPECT_EQ(entropy.better(), Better::kLower);
  const at::Tensor labels = int64s({1, 0, 0, 0});
  entropy.update(floats({.25F, .25F, .25F, .25F}), labels);
  EXPECT_DOUBLE_EQ(entropy.result(), 1.0);
  NormalizedEntropy of_logits({.scores = ScoreKind::kLogits});
  const at::Tensor p = at::rand({4}, at::kDouble) * 0.8 + 0.1;
  entropy.reset();
  entropy.update(p, labels);
  of_logits.update(at::log(p / (1.0 - p)), labels);
  EXPECT_NEAR(of_logits.result(), entropy.result(), 1e-12);
  // One class only.
  entropy.reset();
  EXPECT_TRUE(std::isnan(entropy.result()));
  entropy.update(floats({.5F, .2F}), int64s({0, 0}));
  EXPECT_TRUE(std::isnan(entropy.result()));
  entropy.update(floats({.5F}), int64s({1}), floats({0}));
  EXPECT_TRUE(std::isnan(entropy.result()));
}

TEST(ClassificationMetricsTest, RefuseBadBatchesAndDoNotCountThem) {
  const at::Tensor one = floats({1});
  for (const auto& [name, metric] : all_metrics()) {
    expect_refuses_bad_batches(*metric);
    metric->update_batch(
        {.predictions = at::empty({0}),
         .labels = at::empty({0}),
         .groups = at::empty({0}, at::kLong)});
    EXPECT_TRUE(std::isnan(metric->result()));
  }
  GroupedAUC gauc;
  EXPECT_VALUE_ERROR(gauc.update(one, one), "Return StepResult::groups");
  EXPECT_VALUE_ERROR(
      gauc.update_batch(
          {.predictions = one, .labels = one, .groups = int64s({1, 2})}),
      "a group for each of 1 examples, but got 2");
  EXPECT_VALUE_ERROR(
      gauc.update_batch({.predictions = one, .labels = one, .groups = one}),
      "groups must be ids of dtype int32 or int64");
  NormalizedEntropy entropy;
  EXPECT_VALUE_ERROR(
      entropy.update(floats({1.5F}), one), "probabilities in [0, 1]");
}

}  // namespace tessera::training::classification_metrics_test
