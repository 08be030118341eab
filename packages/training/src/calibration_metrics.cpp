// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/calibration_metrics.h>

#include "packages/training/src/metric_inputs.h"
#include "src/common/check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace tessera::training {

namespace {

constexpr int64_t kMaxBins = 1'000'000;

// A rule whose sums are filled by `add_example(sums, probability, label, weight)`.
template <class AddExample>
detail::SumRule probability_rule(
    size_t count,
    ScoreKind scores,
    AddExample add_example) {
  return {
      .count = count,
      .add =
          [scores, add_example](
              const StepResult& batch,
              const std::string& where,
              std::vector<double>& sums) {
            const MetricInputs inputs = read_two_classes(batch, where);
            const std::vector<double> probabilities =
                probabilities_of(inputs, scores, where);
            for (size_t i = 0; i < inputs.size(); ++i) {
              add_example(
                  sums, probabilities[i], inputs.labels[i], inputs.weights[i]);
            }
          },
      .result = ratio_of};
}

double calibration_error(const std::vector<double>& sums) {
  double distance = 0.0;
  double total = 0.0;
  for (size_t i = 0; i < sums.size(); i += 3) {
    total += sums[i];
    distance += std::abs(sums[i + 2] - sums[i + 1]);
  }
  return total > 0.0 ? distance / total : kUndefined;
}

// The sums of each bin are weight, weight * prediction and weight * label.
detail::SumRule bin_rule(const CalibrationErrorOptions& options) {
  TESSERA_CHECK_VALUE(
      options.bins >= 1 && options.bins <= kMaxBins,
      "[CalibrationError] bins must be in [1, {}], but got {}. Use 10 to 100 bins.",
      kMaxBins,
      options.bins);
  // The inner edges, rounded as in numpy.linspace(0, 1, bins + 1).
  std::vector<double> edges;
  const double width = 1.0 / static_cast<double>(options.bins);
  for (int64_t i = 1; i < options.bins; ++i) {
    edges.push_back(static_cast<double>(i) * width);
  }
  detail::SumRule rule = probability_rule(
      3 * static_cast<size_t>(options.bins),
      options.scores,
      [edges = std::move(edges)](
          std::vector<double>& sums,
          double probability,
          double label,
          double weight) {
        const auto bin = static_cast<size_t>(
            std::ranges::lower_bound(edges, probability) - edges.begin());
        sums[3 * bin] += weight;
        sums[3 * bin + 1] += weight * probability;
        sums[3 * bin + 2] += weight * label;
      });
  rule.better = Better::kLower;
  rule.result = calibration_error;
  return rule;
}

}  // namespace

Calibration::Calibration(ScoreMetricOptions options)
    : RuleMetric(
          name_or(options.name, "calibration"),
          probability_rule(
              2,
              options.scores,
              [](std::vector<double>& sums,
                 double probability,
                 double label,
                 double weight) {
                sums[0] += weight * probability;
                sums[1] += weight * label;
              })) {}

CalibrationError::CalibrationError(CalibrationErrorOptions options)
    : RuleMetric(options.name, bin_rule(options)) {}

std::vector<CalibrationError::Bin> CalibrationError::bins() const {
  std::vector<Bin> bins;
  for (size_t i = 0; i < sums().size(); i += 3) {
    const double weight = sums()[i];
    bins.push_back(
        {.weight = weight,
         .mean_prediction = weight > 0.0 ? sums()[i + 1] / weight : kUndefined,
         .mean_label = weight > 0.0 ? sums()[i + 2] / weight : kUndefined});
  }
  return bins;
}

}  // namespace tessera::training
