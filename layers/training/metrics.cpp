// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/metrics.h>

#include "layers/training/metric_inputs.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace tessera::training {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The machine epsilon of a dtype; for integers that of float64.
double epsilon_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return std::ldexp(1.0, -10);
    case at::kBFloat16:
      return std::ldexp(1.0, -7);
    default:
      return std::numeric_limits<double>::epsilon();
  }
}

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

at::Tensor state_of(const std::vector<double>& numbers) {
  return at::tensor(numbers, at::kDouble);
}

std::string where_of(const std::string& metric) {
  return "[Metric '" + metric + "']";
}

std::vector<double> numbers_of(
    const at::Tensor& state,
    const std::string& name) {
  TESSERA_CHECK_VALUE(
      state.defined() && state.scalar_type() == at::kDouble && state.dim() == 1,
      "[Metric '{}'] expected the saved state of a metric, a float64 tensor [n], but got {}. Resume with the same metrics.",
      name,
      describe(state));
  const at::Tensor flat = state.contiguous();
  const double* begin = flat.const_data_ptr<double>();
  return {begin, begin + flat.numel()};
}

}  // namespace

Metric::Metric(std::string name) : name_(std::move(name)) {
  TESSERA_CHECK_VALUE(
      !name_.empty(),
      "[Metric] expected a name, but got an empty one. Pass a name.");
}

void MeanMetric::add(
    const std::vector<double>& values,
    const at::Tensor& weights) {
  const std::vector<double> counted =
      read_weights(weights, values.size(), where_of(name()));
  for (size_t i = 0; i < values.size(); ++i) {
    const double weight = counted.empty() ? 1.0 : counted[i];
    total_ += weight * values[i];
    weight_ += weight;
  }
}

double MeanMetric::result() const {
  return weight_ > 0.0 ? result_of(total_ / weight_) : kNan;
}

void MeanMetric::reset() {
  total_ = 0.0;
  weight_ = 0.0;
}

at::Tensor MeanMetric::state() const {
  return state_of({total_, weight_});
}

void MeanMetric::load_state(const at::Tensor& state) {
  const std::vector<double> numbers = numbers_of(state, name());
  TESSERA_CHECK_VALUE(
      numbers.size() == 2,
      "[Metric '{}'] expected a state of 2 numbers, but got {}. It is the state of another metric. Resume with the same metrics.",
      name(),
      numbers.size());
  total_ = numbers[0];
  weight_ = numbers[1];
}

// Sorts equal scores by weight, so that sums do not depend on the order of batches.
void AUC::Scores::sort() {
  if (weights.empty()) {
    std::sort(values.begin(), values.end());
    return;
  }
  std::vector<std::pair<double, double>> pairs;
  pairs.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    pairs.emplace_back(values[i], weights[i]);
  }
  std::sort(pairs.begin(), pairs.end());
  for (size_t i = 0; i < pairs.size(); ++i) {
    std::tie(values[i], weights[i]) = pairs[i];
  }
}

void AUC::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  const std::string where = where_of(name());
  TESSERA_CHECK_VALUE(
      !predictions.defined() || predictions.dim() < 2 ||
          predictions.size(1) == 1,
      "{} predictions must have shape [n] or [n, 1], but got {}. Give the scores of one class.",
      where,
      predictions.sizes());
  const MetricInputs inputs = read_classes(predictions, labels, where);
  const std::vector<double> counted =
      read_weights(weights, inputs.size(), where);
  // Examples of earlier batches without weights count 1.
  if (!counted.empty()) {
    positives_.weights.resize(positives_.values.size(), 1.0);
    negatives_.weights.resize(negatives_.values.size(), 1.0);
    has_weights_ = true;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    Scores& scores = inputs.labels[i] == 1.0 ? positives_ : negatives_;
    scores.values.push_back(inputs.predictions[i]);
    if (has_weights_) {
      scores.weights.push_back(counted.empty() ? 1.0 : counted[i]);
    }
  }
}

double AUC::result() const {
  positives_.sort();
  negatives_.sort();
  const auto total = [](const Scores& scores) {
    double sum = 0.0;
    for (size_t i = 0; i < scores.values.size(); ++i) {
      sum += scores.weight(i);
    }
    return sum;
  };
  const double pairs = total(positives_) * total(negatives_);
  if (!(pairs > 0.0)) {
    return kNan;
  }
  double below = 0.0;  // the weight of the negatives with lower scores
  double concordant = 0.0;
  size_t negative = 0;
  for (size_t i = 0; i < positives_.values.size();) {
    const double score = positives_.values[i];
    double positive_weight = 0.0;
    for (; i < positives_.values.size() && positives_.values[i] == score; ++i) {
      positive_weight += positives_.weight(i);
    }
    for (; negative < negatives_.values.size() &&
         negatives_.values[negative] < score;
         ++negative) {
      below += negatives_.weight(negative);
    }
    double equal = 0.0;
    for (size_t j = negative;
         j < negatives_.values.size() && negatives_.values[j] == score;
         ++j) {
      equal += negatives_.weight(j);
    }
    concordant += positive_weight * (below + 0.5 * equal);
  }
  return concordant / pairs;
}

void AUC::reset() {
  positives_ = {};
  negatives_ = {};
  has_weights_ = false;
}

std::unique_ptr<Metric> AUC::make_empty() const {
  return std::make_unique<AUC>(name());
}

// Layout: number of positives, whether there are weights, scores, weights.
at::Tensor AUC::state() const {
  std::vector<double> numbers{
      static_cast<double>(positives_.values.size()), has_weights_ ? 1.0 : 0.0};
  for (const auto* part :
       {&positives_.values,
        &negatives_.values,
        &positives_.weights,
        &negatives_.weights}) {
    numbers.insert(numbers.end(), part->begin(), part->end());
  }
  return state_of(numbers);
}

void AUC::load_state(const at::Tensor& state) {
  const std::vector<double> numbers = numbers_of(state, name());
  const bool has_head = numbers.size() >= 2 &&
      (numbers[1] == 0.0 || numbers[1] == 1.0) && numbers[0] >= 0.0;
  const bool has_weights = has_head && numbers[1] == 1.0;
  const size_t rest = has_head ? numbers.size() - 2 : 0;
  const size_t count = has_weights ? rest / 2 : rest;
  TESSERA_CHECK_VALUE(
      has_head && numbers[0] <= static_cast<double>(count) &&
          (!has_weights || rest % 2 == 0),
      "[Metric '{}'] expected the state of an AUC, but got the state of another metric. Resume with the same metrics.",
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

LogLoss::LogLoss(LogLossOptions options)
    : MeanMetric(options.name), options_(std::move(options)) {}

void LogLoss::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  const std::string where = where_of(name());
  const MetricInputs inputs = read_classes(predictions, labels, where);
  const bool is_logits = options_.scores == ScoreKind::kLogits;
  const double epsilon = epsilon_of(predictions.scalar_type());
  const auto check_probability = [&](double value) {
    TESSERA_CHECK_VALUE(
        value >= 0.0 && value <= 1.0,
        "{} predictions must be probabilities in [0, 1], but got {}. Set LogLossOptions::scores to ScoreKind::kLogits for logits.",
        where,
        value);
  };
  const auto loss_of = [&](double probability) {
    return -std::log(std::clamp(probability, epsilon, 1.0 - epsilon));
  };
  std::vector<double> losses(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double* row = inputs.row(i);
    const auto label = static_cast<size_t>(inputs.labels[i]);
    if (!is_logits) {
      // The rounding errors of a sum grow with the number of classes.
      constexpr double kTolerance = 1e-2;
      double sum = 0.0;
      for (int64_t j = 0; j < inputs.classes; ++j) {
        check_probability(row[j]);
        sum += row[j];
      }
      TESSERA_CHECK_VALUE(
          inputs.classes == 1 || std::abs(sum - 1.0) <= kTolerance,
          "{} the probabilities of an example must sum to 1, but sum to {}. Set LogLossOptions::scores to ScoreKind::kLogits for logits.",
          where,
          sum);
    }
    if (inputs.classes == 1) {
      losses[i] = is_logits ? softplus(label == 1 ? -row[0] : row[0])
                            : loss_of(label == 1 ? row[0] : 1.0 - row[0]);
    } else {
      losses[i] = is_logits
          ? log_of_sum_of_exp(row, inputs.classes) - row[label]
          : loss_of(row[label]);
    }
  }
  add(losses, weights);
}

std::unique_ptr<Metric> LogLoss::make_empty() const {
  return std::make_unique<LogLoss>(options_);
}

void RMSE::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  const MetricInputs inputs =
      read_scores(predictions, labels, where_of(name()));
  std::vector<double> squares(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double difference = inputs.predictions[i] - inputs.labels[i];
    squares[i] = difference * difference;
  }
  add(squares, weights);
}

double RMSE::result_of(double mean) const {
  return std::sqrt(mean);
}

std::unique_ptr<Metric> RMSE::make_empty() const {
  return std::make_unique<RMSE>(name());
}

Accuracy::Accuracy(AccuracyOptions options)
    : MeanMetric(options.name), options_(std::move(options)) {}

void Accuracy::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  const MetricInputs inputs =
      read_classes(predictions, labels, where_of(name()));
  std::vector<double> hits(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double* row = inputs.row(i);
    const std::ptrdiff_t predicted = inputs.classes == 1
        ? std::ptrdiff_t{row[0] > options_.threshold}
        : std::max_element(row, row + inputs.classes) - row;
    hits[i] = static_cast<double>(predicted) == inputs.labels[i] ? 1.0 : 0.0;
  }
  add(hits, weights);
}

std::unique_ptr<Metric> Accuracy::make_empty() const {
  return std::make_unique<Accuracy>(options_);
}

TopKAccuracy::TopKAccuracy(TopKAccuracyOptions options)
    : MeanMetric(
          options.name.empty()
              ? "top_" + std::to_string(options.k) + "_accuracy"
              : options.name),
      options_(std::move(options)) {
  TESSERA_CHECK_VALUE(
      options_.k >= 1,
      "[TopKAccuracy] k must be >= 1, but got {}. Set it to the number of classes that count.",
      options_.k);
}

void TopKAccuracy::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  const std::string where = where_of(name());
  TESSERA_CHECK_VALUE(
      !predictions.defined() ||
          (predictions.dim() == 2 && predictions.size(1) > 1),
      "{} predictions must have shape [n, classes] with 2 classes or more, but got {}. For one score per example, use Accuracy.",
      where,
      predictions.sizes());
  const MetricInputs inputs = read_classes(predictions, labels, where);
  std::vector<double> hits(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double* row = inputs.row(i);
    const auto label = static_cast<int64_t>(inputs.labels[i]);
    int64_t before = 0;  // classes that rank before the label
    for (int64_t j = 0; j < inputs.classes; ++j) {
      before += row[j] > row[label] || (row[j] == row[label] && j > label);
    }
    hits[i] = before < options_.k ? 1.0 : 0.0;
  }
  add(hits, weights);
}

std::unique_ptr<Metric> TopKAccuracy::make_empty() const {
  return std::make_unique<TopKAccuracy>(options_);
}

RecallAtK::RecallAtK(RecallAtKOptions options)
    : MeanMetric(
          options.name.empty() ? "recall_at_" + std::to_string(options.k)
                               : options.name),
      options_(std::move(options)) {
  TESSERA_CHECK_VALUE(
      options_.k >= 1,
      "[RecallAtK] k must be >= 1, but got {}. Set it to the number of retrieved ids that count.",
      options_.k);
}

void RecallAtK::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights) {
  const std::string where = where_of(name());
  const RetrievedIds ids = read_ids(predictions, labels, where);
  const int64_t count = std::min(options_.k, ids.per_example);
  std::vector<double> hits(ids.labels.size());
  for (size_t i = 0; i < hits.size(); ++i) {
    const int64_t* row = ids.row(i);
    hits[i] =
        std::find(row, row + count, ids.labels[i]) != row + count ? 1.0 : 0.0;
  }
  add(hits, weights);
}

std::unique_ptr<Metric> RecallAtK::make_empty() const {
  return std::make_unique<RecallAtK>(options_);
}

void Mean::update(
    const at::Tensor& predictions,
    const at::Tensor& /*labels*/,
    const at::Tensor& weights) {
  add(read_column(predictions, "predictions", where_of(name())), weights);
}

std::unique_ptr<Metric> Mean::make_empty() const {
  return std::make_unique<Mean>(name());
}

}  // namespace tessera::training
