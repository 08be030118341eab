// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/calibration_metrics.h>

#include "packages/training/src/metric_inputs.h"
#include "packages/training/src/metric_state.h"
#include "packages/training/src/two_classes.h"
#include "src/common/check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace tessera::training {

namespace {

constexpr int64_t kMaxBins = 1'000'000;

// Calls add(probability, label, weight) for each example.
template <class Add>
void for_each_probability(
    const MetricBatch& batch,
    ScoreKind scores,
    const std::string& where,
    Add add) {
  const MetricInputs inputs =
      read_two_classes(batch.predictions, batch.labels, where);
  const std::vector<double> weights =
      read_weights(batch.weights, inputs.size(), where);
  const std::vector<double> probabilities =
      probabilities_of(inputs, scores, where);
  for (size_t i = 0; i < inputs.size(); ++i) {
    add(probabilities[i], inputs.labels[i], weights.empty() ? 1.0 : weights[i]);
  }
}

// The sums of each bin are weight, weight * prediction and weight * label.
size_t sums_of(const CalibrationErrorOptions& options) {
  TESSERA_CHECK_VALUE(
      options.bins >= 1 && options.bins <= kMaxBins,
      "[CalibrationError] bins must be in [1, {}], but got {}. Use 10 to 100 bins.",
      kMaxBins,
      options.bins);
  return 3 * static_cast<size_t>(options.bins);
}

}  // namespace

Calibration::Calibration(CalibrationOptions options)
    : SumMetric(options.name, 2), options_(std::move(options)) {}

void Calibration::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  for_each_probability(
      {.predictions = predictions, .labels = labels, .weights = weights},
      options_.scores,
      where_of(name()),
      [&](double probability, double label, double weight) {
        sums()[0] += weight * probability;
        sums()[1] += weight * label;
      });
}

double Calibration::result() const {
  return sums()[1] > 0.0 ? sums()[0] / sums()[1] : kUndefined;
}

std::unique_ptr<Metric> Calibration::make_empty() const {
  return std::make_unique<Calibration>(options_);
}

CalibrationError::CalibrationError(CalibrationErrorOptions options)
    : SumMetric(options.name, sums_of(options)), options_(std::move(options)) {}

void CalibrationError::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  // The inner edges, rounded as in numpy.linspace(0, 1, bins + 1).
  std::vector<double> edges;
  const double width = 1.0 / static_cast<double>(options_.bins);
  for (int64_t i = 1; i < options_.bins; ++i) {
    edges.push_back(static_cast<double>(i) * width);
  }
  for_each_probability(
      {.predictions = predictions, .labels = labels, .weights = weights},
      options_.scores,
      where_of(name()),
      [&](double probability, double label, double weight) {
        const auto bin = static_cast<size_t>(
            std::lower_bound(edges.begin(), edges.end(), probability) -
            edges.begin());
        sums()[3 * bin] += weight;
        sums()[3 * bin + 1] += weight * probability;
        sums()[3 * bin + 2] += weight * label;
      });
}

std::vector<CalibrationBin> CalibrationError::bins() const {
  std::vector<CalibrationBin> bins;
  for (size_t i = 0; i < sums().size(); i += 3) {
    const double weight = sums()[i];
    bins.push_back(
        {.weight = weight,
         .mean_prediction = weight > 0.0 ? sums()[i + 1] / weight : kUndefined,
         .mean_label = weight > 0.0 ? sums()[i + 2] / weight : kUndefined});
  }
  return bins;
}

double CalibrationError::result() const {
  double distance = 0.0;
  double total = 0.0;
  for (size_t i = 0; i < sums().size(); i += 3) {
    total += sums()[i];
    distance += std::abs(sums()[i + 2] - sums()[i + 1]);
  }
  return total > 0.0 ? distance / total : kUndefined;
}

std::unique_ptr<Metric> CalibrationError::make_empty() const {
  return std::make_unique<CalibrationError>(options_);
}

}  // namespace tessera::training
