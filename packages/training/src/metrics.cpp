// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/metrics.h>

#include "packages/training/src/metric_inputs.h"
#include "src/common/check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace tessera::training {

Metric::Metric(std::string name) : name_(std::move(name)) {
  TESSERA_CHECK_VALUE(
      !name_.empty(),
      "[Metric] expected a name, but got an empty one. Pass a name.");
}

namespace {

void refuse_bags(const StepResult& batch, const std::string& metric) {
  TESSERA_CHECK_VALUE(
      !batch.label_splits.defined(),
      "[Metric '{}'] expected one label for each example, but got bags of labels. Leave out label_splits, or use a metric of retrieved ids.",
      metric);
}

}  // namespace

void Metric::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  if (needs_update_) {
    C10_THROW_ERROR(
        NotImplementedError,
        where_of(name()) +
            " it overrides neither update() nor update_batch(). Override one of them.");
  }
  update_batch(
      {.predictions = predictions, .labels = labels, .weights = weights});
}

void Metric::update_batch(const StepResult& batch) {
  refuse_bags(batch, name());
  needs_update_ = true;
  update(batch.predictions, batch.labels, batch.weights);
}

void Metric::merge(const at::Tensor& /*state*/) {
  C10_THROW_ERROR(
      NotImplementedError,
      where_of(name()) +
          " it cannot be merged with the metrics of other ranks. Override merge(), or derive it from SumMetric.");
}

void SumMetric::reset() {
  std::fill(sums_.begin(), sums_.end(), 0.0);
}

at::Tensor SumMetric::state() const {
  return metric_state(sums_);
}

void SumMetric::load_state(const at::Tensor& state) {
  std::vector<double> numbers = read_state(state, name());
  TESSERA_CHECK_VALUE(
      numbers.size() == sums_.size(),
      "[Metric '{}'] expected a state of {} numbers, but got {}. It is the state of another metric. Resume with the same metrics.",
      name(),
      sums_.size(),
      numbers.size());
  sums_ = std::move(numbers);
}

void SumMetric::merge(const at::Tensor& state) {
  const std::vector<double> own = sums_;
  SumMetric::load_state(state);
  for (size_t i = 0; i < own.size(); ++i) {
    sums_[i] += own[i];
  }
}

void detail::RuleMetric::update_batch(const StepResult& batch) {
  refuse_bags(batch, name());
  rule_.add(batch, where_of(name()), sums());
}

double detail::WeightedScores::total_weight() const {
  return weights.empty() ? static_cast<double>(values.size())
                         : std::accumulate(weights.begin(), weights.end(), 0.0);
}

void detail::WeightedScores::sort() {
  if (weights.empty()) {
    std::ranges::sort(values);
    return;
  }
  std::vector<std::pair<double, double>> pairs;
  pairs.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    pairs.emplace_back(values[i], weights[i]);
  }
  std::ranges::sort(pairs);
  for (size_t i = 0; i < pairs.size(); ++i) {
    std::tie(values[i], weights[i]) = pairs[i];
  }
}

void detail::TwoClassMetric::update_batch(const StepResult& batch) {
  refuse_bags(batch, name());
  const MetricInputs inputs = read_two_classes(batch, where_of(name()));
  // Examples of earlier batches without weights get the weight 1.
  if (batch.weights.defined()) {
    positives_.weights.resize(positives_.values.size(), 1.0);
    negatives_.weights.resize(negatives_.values.size(), 1.0);
    has_weights_ = true;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& scores = inputs.labels[i] == 1.0 ? positives_ : negatives_;
    scores.values.push_back(inputs.predictions[i]);
    if (has_weights_) {
      scores.weights.push_back(inputs.weights[i]);
    }
  }
}

double detail::TwoClassMetric::result() const {
  positives_.sort();
  negatives_.sort();
  return result_of_(positives_, negatives_);
}

void detail::TwoClassMetric::reset() {
  positives_ = {};
  negatives_ = {};
  has_weights_ = false;
}

// Layout: number of positives, whether there are weights, scores, weights.
at::Tensor detail::TwoClassMetric::state() const {
  std::vector<double> numbers{
      static_cast<double>(positives_.values.size()), has_weights_ ? 1.0 : 0.0};
  for (const auto* part :
       {&positives_.values,
        &negatives_.values,
        &positives_.weights,
        &negatives_.weights}) {
    numbers.insert(numbers.end(), part->begin(), part->end());
  }
  return metric_state(numbers);
}

void detail::TwoClassMetric::load_state(const at::Tensor& state) {
  const std::vector<double> numbers = read_state(state, name());
  const bool has_head = numbers.size() >= 2 &&
      (numbers[1] == 0.0 || numbers[1] == 1.0) && numbers[0] >= 0.0;
  const bool has_weights = has_head && numbers[1] == 1.0;
  const size_t rest = has_head ? numbers.size() - 2 : 0;
  const size_t count = has_weights ? rest / 2 : rest;
  TESSERA_CHECK_VALUE(
      has_head && numbers[0] <= static_cast<double>(count) &&
          (!has_weights || rest % 2 == 0),
      "[Metric '{}'] expected the state of scores of two classes, but got the state of another metric. Resume with the same metrics.",
      name());
  const auto positives = static_cast<std::ptrdiff_t>(numbers[0]);
  const auto split = [&](std::ptrdiff_t begin) {
    const auto first = numbers.begin() + begin;
    const auto last = first + static_cast<std::ptrdiff_t>(count);
    return std::pair{
        std::vector<double>(first, first + positives),
        std::vector<double>(first + positives, last)};
  };
  std::tie(positives_.values, negatives_.values) = split(2);
  positives_.weights.clear();
  negatives_.weights.clear();
  if (has_weights) {
    std::tie(positives_.weights, negatives_.weights) =
        split(2 + static_cast<std::ptrdiff_t>(count));
  }
  has_weights_ = has_weights;
}

void detail::TwoClassMetric::merge(const at::Tensor& state) {
  TwoClassMetric other(name(), result_of_);
  other.load_state(state);
  has_weights_ = has_weights_ || other.has_weights_;
  const auto append = [&](auto& scores, const auto& added) {
    scores.values.insert(
        scores.values.end(), added.values.begin(), added.values.end());
    if (has_weights_) {
      // Examples without weights get the weight 1.
      scores.weights.resize(scores.values.size() - added.values.size(), 1.0);
      scores.weights.insert(
          scores.weights.end(), added.weights.begin(), added.weights.end());
      scores.weights.resize(scores.values.size(), 1.0);
    }
  };
  append(positives_, other.positives_);
  append(negatives_, other.negatives_);
}

AUC::AUC(std::string name) : TwoClassMetric(std::move(name), area_under_roc) {}

LogLoss::LogLoss(ScoreMetricOptions options)
    : RuleMetric(
          name_or(options.name, "log_loss"),
          mean_rule(
              Better::kLower,
              read_classes,
              [scores = options.scores](
                  const MetricInputs& inputs,
                  size_t i,
                  const std::string& where) {
                return log_loss_of(inputs, i, scores, where);
              })) {}

RMSE::RMSE(std::string name)
    : RuleMetric(std::move(name), [] {
        detail::SumRule rule = mean_rule(
            Better::kLower,
            read_scores,
            [](const MetricInputs& inputs, size_t i, const std::string&) {
              const double difference =
                  inputs.predictions[i] - inputs.labels[i];
              return difference * difference;
            });
        rule.result = [](const std::vector<double>& sums) {
          return std::sqrt(ratio_of(sums));
        };
        return rule;
      }()) {}

Accuracy::Accuracy(AccuracyOptions options)
    : RuleMetric(
          options.name,
          mean_rule(
              Better::kHigher,
              read_classes,
              [threshold = options.threshold](
                  const MetricInputs& inputs,
                  size_t i,
                  const std::string&) {
                const double* row = inputs.row(i);
                const std::ptrdiff_t predicted = inputs.classes == 1
                    ? std::ptrdiff_t{row[0] > threshold}
                    : std::max_element(row, row + inputs.classes) - row;
                return static_cast<double>(predicted) == inputs.labels[i] ? 1.0
                                                                          : 0.0;
              })) {}

namespace {

MetricInputs read_several_classes(
    const StepResult& batch,
    const std::string& where) {
  const at::Tensor& predictions = batch.predictions;
  TESSERA_CHECK_VALUE(
      !predictions.defined() ||
          (predictions.dim() == 2 && predictions.size(1) > 1),
      "{} predictions must have shape [n, classes] with 2 classes or more, but got {}. For one score per example, use Accuracy.",
      where,
      predictions.sizes());
  return read_classes(batch, where);
}

// Returns the number of classes that rank before the label. Later classes win if scores are
// equal, as in scikit-learn's top_k_accuracy_score.
int64_t rank_of_label(const MetricInputs& inputs, size_t i) {
  const double* row = inputs.row(i);
  const auto label = static_cast<int64_t>(inputs.labels[i]);
  int64_t before = 0;
  for (int64_t j = 0; j < inputs.classes; ++j) {
    before += row[j] > row[label] || (row[j] == row[label] && j > label);
  }
  return before;
}

}  // namespace

TopKAccuracy::TopKAccuracy(TopKAccuracyOptions options)
    : RuleMetric(
          name_or(
              options.name,
              "top_" + std::to_string(options.k) + "_accuracy"),
          mean_rule(
              Better::kHigher,
              read_several_classes,
              [k = options.k](
                  const MetricInputs& inputs,
                  size_t i,
                  const std::string&) {
                return rank_of_label(inputs, i) < k ? 1.0 : 0.0;
              })) {
  TESSERA_CHECK_VALUE(
      options.k >= 1,
      "[TopKAccuracy] k must be >= 1, but got {}. Set it to the number of classes that count.",
      options.k);
}

Mean::Mean(std::string name)
    : RuleMetric(
          std::move(name),
          mean_rule(
              Better::kUnknown,
              read_predictions,
              [](const MetricInputs& inputs, size_t i, const std::string&) {
                return inputs.predictions[i];
              })) {}

}  // namespace tessera::training
