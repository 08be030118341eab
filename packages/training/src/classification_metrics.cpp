// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/classification_metrics.h>

#include "packages/training/src/metric_inputs.h"
#include "src/common/check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tessera::training {

namespace {

double area_under_precision_recall(
    const detail::WeightedScores& positives,
    const detail::WeightedScores& negatives) {
  const double relevant = positives.total_weight();
  if (!(relevant > 0.0)) {
    return kUndefined;
  }
  double found = 0.0;  // the weight of the positives at or above the threshold
  double above = 0.0;  // the weight of all examples at or above it
  double area = 0.0;
  size_t positive = positives.values.size();
  size_t negative = negatives.values.size();
  while (positive > 0) {
    const double threshold = positives.values[positive - 1];
    double step = 0.0;
    for (; positive > 0 && positives.values[positive - 1] == threshold;
         --positive) {
      step += positives.weight(positive - 1);
    }
    for (; negative > 0 && negatives.values[negative - 1] >= threshold;
         --negative) {
      above += negatives.weight(negative - 1);
    }
    found += step;
    above += step;
    if (step > 0.0) {
      area += step * (found / above);
    }
  }
  return area / relevant;
}

// The sums: weight * loss, weight, weight * label.
double normalized_entropy(const std::vector<double>& sums) {
  const double share = sums[2] / sums[1];
  if (!(share > 0.0 && share < 1.0)) {
    return kUndefined;
  }
  const double entropy =
      -(share * std::log(share) + (1.0 - share) * std::log1p(-share));
  return sums[0] / sums[1] / entropy;
}

}  // namespace

AveragePrecision::AveragePrecision(std::string name)
    : TwoClassMetric(std::move(name), area_under_precision_recall) {}

void GroupedAUC::update_batch(const StepResult& batch) {
  const std::string where = where_of(name());
  TESSERA_CHECK_VALUE(
      batch.groups.defined(),
      "{} expected the group of each example, but got none. Return StepResult::groups from the step, or call update_batch() with groups.",
      where);
  const MetricInputs inputs = read_two_classes(batch, where);
  const std::vector<int64_t> groups =
      read_groups(batch.groups, inputs.size(), where);
  for (size_t i = 0; i < inputs.size(); ++i) {
    examples_.push_back(
        {.group = groups[i],
         .score = inputs.predictions[i],
         .weight = inputs.weights[i],
         .label = inputs.labels[i]});
  }
}

double GroupedAUC::result() const {
  // Sorts by group, then score, then weight, so that the sums do not depend on the order
  // of batches.
  std::ranges::sort(examples_);
  double total = 0.0;
  double impressions = 0.0;
  for (size_t i = 0; i < examples_.size();) {
    const int64_t group = examples_[i].group;
    detail::WeightedScores positives, negatives;
    for (; i < examples_.size() && examples_[i].group == group; ++i) {
      auto& scores = examples_[i].label == 1.0 ? positives : negatives;
      scores.values.push_back(examples_[i].score);
      scores.weights.push_back(examples_[i].weight);
    }
    const double area = area_under_roc(positives, negatives);
    if (!std::isnan(area)) {
      const double weight = positives.total_weight() + negatives.total_weight();
      total += weight * area;
      impressions += weight;
    }
  }
  return impressions > 0.0 ? total / impressions : kUndefined;
}

// Layout: two numbers for the group, then score, weight and label of each example.
at::Tensor GroupedAUC::state() const {
  std::vector<double> numbers;
  numbers.reserve(5 * examples_.size());
  for (const Example& example : examples_) {
    append_id(numbers, example.group);
    numbers.insert(
        numbers.end(), {example.score, example.weight, example.label});
  }
  return metric_state(numbers);
}

void GroupedAUC::load_state(const at::Tensor& state) {
  const std::vector<double> numbers = read_state(state, name());
  TESSERA_CHECK_VALUE(
      numbers.size() % 5 == 0,
      "[Metric '{}'] expected the state of a GroupedAUC, 5 numbers per example, but got {} numbers. Resume with the same metrics.",
      name(),
      numbers.size());
  examples_.clear();
  for (size_t i = 0; i < numbers.size(); i += 5) {
    examples_.push_back(
        {.group = id_at(numbers, i),
         .score = numbers[i + 2],
         .weight = numbers[i + 3],
         .label = numbers[i + 4]});
  }
}

void GroupedAUC::merge(const at::Tensor& state) {
  GroupedAUC other(name());
  other.load_state(state);
  examples_.insert(
      examples_.end(), other.examples_.begin(), other.examples_.end());
}

NormalizedEntropy::NormalizedEntropy(ScoreMetricOptions options)
    : RuleMetric(
          name_or(options.name, "normalized_entropy"),
          {.count = 3,
           .better = Better::kLower,
           .add =
               [scores = options.scores](
                   const StepResult& batch,
                   const std::string& where,
                   std::vector<double>& sums) {
                 const MetricInputs inputs = read_two_classes(batch, where);
                 add_values(sums, inputs, [&](size_t i) {
                   return log_loss_of(inputs, i, scores, where);
                 });
                 for (size_t i = 0; i < inputs.size(); ++i) {
                   sums[2] += inputs.weights[i] * inputs.labels[i];
                 }
               },
           .result = normalized_entropy}) {}

}  // namespace tessera::training
