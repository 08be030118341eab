// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/metrics.h>

#include "packages/training/tests/metric_test_util.h"

namespace tessera::training::metrics_test {

std::unique_ptr<Metric> metric_of(const Json& json) {
  const std::string kind = json["metric"];
  const Json& options = json["options"];
  if (kind == "auc") {
    return std::make_unique<AUC>();
  }
  if (kind == "log_loss") {
    return std::make_unique<LogLoss>(ScoreMetricOptions{
        .scores = options.value("logits", false) ? ScoreKind::kLogits
                                                 : ScoreKind::kProbabilities});
  }
  if (kind == "rmse") {
    return std::make_unique<RMSE>();
  }
  if (kind == "top_k_accuracy") {
    return std::make_unique<TopKAccuracy>(
        TopKAccuracyOptions{.k = options["k"]});
  }
  if (kind == "accuracy") {
    return std::make_unique<Accuracy>(
        AccuracyOptions{.threshold = options["threshold"]});
  }
  EXPECT_EQ(kind, "mean");
  return std::make_unique<Mean>();
}

StepResult batch_of(const Json& json) {
  const auto dtype = json["dtype"] == "float32" ? at::kFloat : at::kDouble;
  return {
      .predictions = golden_doubles(json["predictions"])
                         .view(json["shape"].get<std::vector<int64_t>>())
                         .to(dtype),
      .labels = golden_doubles(json["labels"]),
      .weights = golden_doubles(json["weights"])};
}

TEST(MetricsTest, MatchScikitLearnForAnyBatchSize) {
  const auto golden = read_golden("metrics.json");
  ASSERT_EQ(golden["cases"].size(), 50U);
  for (const auto& entry : golden["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    // scikit-learn takes the logarithm of float32 probabilities in float32.
    const bool is_rounded =
        entry["dtype"] == "float32" && entry["metric"] == "log_loss";
    // The reference converts logits to probabilities.
    const bool is_logits = entry["options"].contains("logits");
    const double tolerance = is_rounded ? 1e-6 : is_logits ? 1e-10 : 1e-13;
    const auto metric = metric_of(entry);
    metric->update_batch(batch_of(entry));
    const double expected = entry["result"];
    EXPECT_NEAR(metric->result(), expected, tolerance * std::abs(expected));
    expect_independent_of_batches(*metric, batch_of(entry));
  }
}

TEST(MetricsTest, AreNanWhereTheyAreUndefined) {
  AUC auc;
  EXPECT_TRUE(std::isnan(auc.result()));
  auc.update(floats({0.5F, 0.7F}), int64s({1, 1}));
  EXPECT_TRUE(std::isnan(auc.result()));
  auc.update(floats({0.1F}), int64s({0}), floats({0}));
  EXPECT_TRUE(std::isnan(auc.result()));
  auc.update(floats({0.1F}), int64s({0}), floats({2}));
  EXPECT_EQ(auc.result(), 1.0);
  RMSE rmse;
  EXPECT_TRUE(std::isnan(rmse.result()));
  rmse.update(at::empty({0}), at::empty({0}));
  EXPECT_TRUE(std::isnan(rmse.result()));
  rmse.update(floats({1}), floats({3}), floats({0}));
  EXPECT_TRUE(std::isnan(rmse.result()));
}

TEST(MetricsTest, WeightedBatchesMayFollowUnweightedOnes) {
  AUC mixed, all;
  mixed.update(floats({0.1F, 0.4F}), int64s({0, 1}));
  mixed.update(floats({0.3F, 0.2F}), int64s({0, 1}), floats({3, 2}));
  all.update(
      floats({0.1F, 0.4F, 0.3F, 0.2F}),
      int64s({0, 1, 0, 1}),
      floats({1, 1, 3, 2}));
  EXPECT_EQ(mixed.result(), all.result());
  EXPECT_DOUBLE_EQ(all.result(), 6.0 / 12.0);
}

TEST(MetricsTest, LogLossOfLargeLogitsIsFiniteAndExact) {
  LogLoss metric({.scores = ScoreKind::kLogits});
  metric.update(floats({1000.0F, -1000.0F}), int64s({0, 1}));
  EXPECT_DOUBLE_EQ(metric.result(), 1000.0);
  metric.reset();
  metric.update(
      at::tensor({1000.0, -1000.0}, at::kDouble).view({1, 2}), int64s({1}));
  EXPECT_DOUBLE_EQ(metric.result(), 2000.0);
}

TEST(MetricsTest, TakeColumnsAndEveryDtype) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kLong, at::kInt}) {
    RMSE metric;
    metric.update(
        floats({1, 2}).to(dtype).view({2, 1}), floats({4, 2}).to(dtype));
    EXPECT_DOUBLE_EQ(metric.result(), std::sqrt(4.5));
  }
}

TEST(MetricsTest, RefuseBadBatchesAndDoNotCountThem) {
  AUC auc;
  expect_refuses_bad_batches(auc);
  EXPECT_VALUE_ERROR(
      auc.load_state(at::tensor({5.0, 0.0, 1.0}, at::kDouble)),
      "the state of scores of two classes");
  LogLoss log_loss;
  EXPECT_VALUE_ERROR(
      log_loss.update(floats({1.5F}), int64s({1})), "set the option `scores`");
  EXPECT_VALUE_ERROR(
      log_loss.update(floats({0.1F, 0.2F, 0.3F}).view({1, 3}), int64s({1})),
      "must sum to 1");
  TopKAccuracy top_k;
  EXPECT_EQ(top_k.name(), "top_5_accuracy");
  EXPECT_VALUE_ERROR(
      top_k.update(floats({1.5F}), int64s({1})), "shape [n, classes]");
  EXPECT_VALUE_ERROR(
      top_k.update(at::rand({1, 3}), int64s({3})), "classes 0 to 2, but got 3");
  EXPECT_VALUE_ERROR(TopKAccuracy({.k = 0}), "k must be >= 1, but got 0");
  EXPECT_VALUE_ERROR(AUC(""), "expected a name");
}

// A metric that forgets update().
class Forgetful : public SumMetric {
 public:
  Forgetful() : SumMetric("forgetful", 1) {}
  double result() const override {
    return sums()[0];
  }
  std::unique_ptr<Metric> make_empty() const override {
    return std::make_unique<Forgetful>();
  }
};

TEST(MetricsTest, AMetricWithoutAnUpdateIsAnError) {
  const auto* text = "[Metric 'forgetful'] it overrides neither update() nor";
  Forgetful metric;
  EXPECT_RAISES(c10::NotImplementedError, metric.update(floats({1})), text);
  EXPECT_RAISES(
      c10::NotImplementedError,
      metric.update_batch({.predictions = floats({1})}),
      text);
}

}  // namespace tessera::training::metrics_test
