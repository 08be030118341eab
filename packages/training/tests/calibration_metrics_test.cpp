// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/calibration_metrics.h>

#include "packages/training/tests/metric_test_util.h"

namespace tessera::training::calibration_metrics_test {

StepResult batch_of(const Json& json) {
  return {
      .predictions = golden_doubles(json["scores"]),
      .labels = golden_doubles(json["labels"]),
      .weights = golden_doubles(json["weights"])};
}

TEST(CalibrationMetricsTest, MatchScikitLearn) {
  const Json golden = read_golden("ranking.json")["classes"];
  int compared = 0;
  for (const Json& json : golden) {
    SCOPED_TRACE(json["name"].get<std::string>());
    const Json& results = json["results"];
    Calibration calibration;
    calibration.update_batch(batch_of(json));
    EXPECT_NEAR(
        calibration.result(), results["calibration"].get<double>(), 1e-13);
    expect_independent_of_batches(calibration, batch_of(json));
    for (const int64_t bins : {1, 8, 10}) {
      CalibrationError error({.bins = bins});
      error.update_batch(batch_of(json));
      expect_independent_of_batches(error, batch_of(json));
      const std::string name = "calibration_error_" + std::to_string(bins);
      if (results.contains(name)) {
        EXPECT_NEAR(error.result(), results[name].get<double>(), 1e-13);
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 9);
}

TEST(CalibrationMetricsTest, BinsHaveWeightedMeans) {
  CalibrationError error({.bins = 2});
  EXPECT_EQ(error.name(), "calibration_error");
  EXPECT_EQ(error.better(), Better::kLower);
  // 0.5 is on the edge, so it belongs to the first bin.
  error.update(floats({0, 0.5F, 1}), int64s({0, 1, 0}), floats({1, 3, 4}));
  const auto bins = error.bins();
  ASSERT_EQ(bins.size(), 2U);
  EXPECT_EQ(bins[0].weight, 4.0);
  EXPECT_EQ(bins[0].mean_prediction, 0.375);
  EXPECT_EQ(bins[0].mean_label, 0.75);
  EXPECT_EQ(bins[1].mean_prediction, 1.0);
  EXPECT_EQ(bins[1].mean_label, 0.0);
  EXPECT_DOUBLE_EQ(error.result(), (4.0 * 0.375 + 4.0 * 1.0) / 8.0);
  error.reset();
  EXPECT_TRUE(std::isnan(error.bins()[0].mean_label));
  EXPECT_EQ(error.bins()[0].weight, 0.0);
}

TEST(CalibrationMetricsTest, LogitsAreConverted) {
  const at::Tensor p = at::rand({9}, at::kDouble) * 0.8 + 0.1;
  const at::Tensor logits = at::log(p / (1.0 - p));
  const at::Tensor labels = int64s({0, 1, 0, 1, 1, 0, 0, 0, 1});
  Calibration a, b({.scores = ScoreKind::kLogits});
  a.update(p, labels);
  b.update(logits, labels);
  EXPECT_NEAR(b.result(), a.result(), 1e-12);
  CalibrationError c, d({.scores = ScoreKind::kLogits});
  c.update(p, labels);
  d.update(logits, labels);
  EXPECT_NEAR(d.result(), c.result(), 1e-12);
  b.reset();
  b.update(floats({1000, -1000}), int64s({1, 1}));
  EXPECT_EQ(b.result(), 0.5);
}

TEST(CalibrationMetricsTest, OfOneClass) {
  Calibration calibration;
  EXPECT_EQ(calibration.better(), Better::kUnknown);
  EXPECT_TRUE(std::isnan(calibration.result()));
  calibration.update(floats({.5F}), int64s({0}));
  EXPECT_TRUE(std::isnan(calibration.result()));  // no positive example
  calibration.update(floats({.25F}), int64s({1}));
  EXPECT_DOUBLE_EQ(calibration.result(), 0.75);
  CalibrationError error;
  error.update(floats({.25F}), int64s({0}));
  EXPECT_DOUBLE_EQ(error.result(), 0.25);
}

TEST(CalibrationMetricsTest, RefuseBadBatchesAndDoNotCountThem) {
  Calibration calibration;
  CalibrationError error;
  for (Metric* metric : std::initializer_list<Metric*>{&calibration, &error}) {
    expect_refuses_bad_batches(*metric);
    EXPECT_VALUE_ERROR(
        metric->update(floats({.5F, 1.5F}), floats({1, 1})),
        "probabilities in [0, 1], but got 1.5");
  }
  EXPECT_VALUE_ERROR(
      CalibrationError({.bins = 0}), "bins must be in [1, 1000000], but got 0");
}

}  // namespace tessera::training::calibration_metrics_test
