// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/two_classes.h"

#include "src/common/check.h"

#include <algorithm>
#include <cmath>

namespace tessera::training {

namespace {

double log_of_sum_of_exp(const double* values, int64_t count) {
  const double largest = *std::max_element(values, values + count);
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    sum += std::exp(values[i] - largest);
  }
  return largest + std::log(sum);
}

// log(1 + exp(x)) without overflow of exp(x).
double softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

double sigmoid(double x) {
  const double small = std::exp(-std::abs(x));
  return (x >= 0.0 ? 1.0 : small) / (1.0 + small);
}

void check_probability(double value, const std::string& where) {
  TESSERA_CHECK_VALUE(
      value >= 0.0 && value <= 1.0,
      "{} predictions must be probabilities in [0, 1], but got {}. For logits, set the option `scores` to ScoreKind::kLogits.",
      where,
      value);
}

}  // namespace

double area_under_roc(
    const detail::WeightedScores& positives,
    const detail::WeightedScores& negatives) {
  const double pairs = positives.total_weight() * negatives.total_weight();
  if (!(pairs > 0.0)) {
    return kUndefined;
  }
  double below = 0.0;  // the weight of the negatives with lower scores
  double concordant = 0.0;
  size_t negative = 0;
  for (size_t i = 0; i < positives.values.size();) {
    const double score = positives.values[i];
    double positive_weight = 0.0;
    for (; i < positives.values.size() && positives.values[i] == score; ++i) {
      positive_weight += positives.weight(i);
    }
    for (; negative < negatives.values.size() &&
         negatives.values[negative] < score;
         ++negative) {
      below += negatives.weight(negative);
    }
    double equal = 0.0;
    for (size_t j = negative;
         j < negatives.values.size() && negatives.values[j] == score;
         ++j) {
      equal += negatives.weight(j);
    }
    concordant += positive_weight * (below + 0.5 * equal);
  }
  return concordant / pairs;
}

double log_loss_of(
    const MetricInputs& inputs,
    size_t i,
    ScoreKind scores,
    const std::string& where) {
  const double* row = inputs.row(i);
  const auto label = static_cast<size_t>(inputs.labels[i]);
  if (scores == ScoreKind::kLogits) {
    return inputs.classes == 1
        ? softplus(label == 1 ? -row[0] : row[0])
        : log_of_sum_of_exp(row, inputs.classes) - row[label];
  }
  // The rounding errors of a sum grow with the number of classes.
  constexpr double kTolerance = 1e-2;
  double sum = 0.0;
  for (int64_t j = 0; j < inputs.classes; ++j) {
    check_probability(row[j], where);
    sum += row[j];
  }
  TESSERA_CHECK_VALUE(
      inputs.classes == 1 || std::abs(sum - 1.0) <= kTolerance,
      "{} the probabilities of an example must sum to 1, but sum to {}. For logits, set the option `scores` to ScoreKind::kLogits.",
      where,
      sum);
  const double probability = inputs.classes > 1 ? row[label]
      : label == 1                              ? row[0]
                                                : 1.0 - row[0];
  return -std::log(
      std::clamp(probability, inputs.epsilon, 1.0 - inputs.epsilon));
}

std::vector<double> probabilities_of(
    const MetricInputs& inputs,
    ScoreKind scores,
    const std::string& where) {
  std::vector<double> probabilities = inputs.predictions;
  for (double& value : probabilities) {
    if (scores == ScoreKind::kLogits) {
      value = sigmoid(value);
    } else {
      check_probability(value, where);
    }
  }
  return probabilities;
}

}  // namespace tessera::training
