// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/metric_inputs.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <tuple>

#include "src/common/check.h"
#include "src/common/tensor_text.h"

namespace tessera::training {

namespace {

constexpr int64_t kIdBase = int64_t{1} << 32;

// The machine epsilon of a dtype; for integers, the epsilon of float64.
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

void check_dense(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      values.layout() == at::kStrided && !values.is_meta(),
      "{} {} must be a dense tensor of real numbers, but got {}. Convert the tensor first.",
      where,
      what,
      values.toString());
}

std::vector<double> read_values(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  check_dense(values, what, where);
  TESSERA_CHECK_VALUE(
      !values.is_complex() && !values.is_quantized(),
      "{} {} must be a dense tensor of real numbers, but got {}. Convert the tensor first.",
      where,
      what,
      values.toString());
  const at::Tensor flat =
      values.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* begin = flat.const_data_ptr<double>();
  std::vector<double> numbers(begin, begin + flat.numel());
  TESSERA_CHECK_VALUE(
      std::ranges::none_of(
          numbers, [](double number) { return std::isnan(number); }),
      "{} {} must be numbers, but some are NaN. {}",
      where,
      what,
      std::string_view(what) == "predictions"
          ? "Lower the learning rate, or check the data."
          : "Correct the data.");
  return numbers;
}

void check_sizes(size_t labels, int64_t rows, const std::string& where) {
  TESSERA_CHECK_VALUE(
      static_cast<int64_t>(labels) == rows,
      "{} predictions and labels must have the same length, but got {} predictions and {} labels. Pass both for the same examples.",
      where,
      rows,
      labels);
}

void check_column(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      values.defined(),
      "{} expected {}, but got an undefined tensor. Pass them, or return them from the step.",
      where,
      what);
  TESSERA_CHECK_VALUE(
      values.dim() == 1 || (values.dim() == 2 && values.size(1) == 1),
      "{} {} must have shape [n] or [n, 1], but got {}. Flatten it, or give one column at a time.",
      where,
      what,
      values.sizes());
}

void check_weights(
    const std::vector<double>& weights,
    const std::string& where) {
  for (const double weight : weights) {
    TESSERA_CHECK_VALUE(
        weight >= 0.0 && std::isfinite(weight),
        "{} weights must be finite and >= 0, but got {}. Correct the weights.",
        where,
        weight);
  }
}

// Ids stay int64, because doubles would round large ones.
std::vector<int64_t> read_integers(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  check_dense(values, what, where);
  TESSERA_CHECK_VALUE(
      values.scalar_type() == at::kLong || values.scalar_type() == at::kInt,
      "{} {} must be ids of dtype int32 or int64, but got {}. Convert the tensor first.",
      where,
      what,
      values.toString());
  const at::Tensor flat = values.to(at::kCPU, at::kLong).contiguous();
  const int64_t* begin = flat.const_data_ptr<int64_t>();
  return {begin, begin + flat.numel()};
}

std::vector<double> read_column(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  check_column(values, what, where);
  return read_values(values, what, where);
}

}  // namespace

std::string where_of(const std::string& metric) {
  return "[Metric '" + metric + "']";
}

at::Tensor metric_state(const std::vector<double>& numbers) {
  return at::tensor(numbers, at::kDouble);
}

std::vector<double> read_state(
    const at::Tensor& state,
    const std::string& metric) {
  TESSERA_CHECK_VALUE(
      state.defined() && state.scalar_type() == at::kDouble && state.dim() == 1,
      "[Metric '{}'] expected the saved state of a metric, a float64 tensor [n], but got {}. Resume with the same metrics.",
      metric,
      describe(state));
  const at::Tensor flat = state.contiguous();
  const double* begin = flat.const_data_ptr<double>();
  return {begin, begin + flat.numel()};
}

void append_id(std::vector<double>& numbers, int64_t id) {
  // The remainder has the sign of the id, so that doubles hold both numbers exactly.
  numbers.push_back(static_cast<double>(id / kIdBase));
  numbers.push_back(static_cast<double>(id % kIdBase));
}

int64_t id_at(const std::vector<double>& numbers, size_t position) {
  return static_cast<int64_t>(numbers[position]) * kIdBase +
      static_cast<int64_t>(numbers[position + 1]);
}

std::vector<double> read_weights(
    const at::Tensor& weights,
    size_t size,
    const std::string& where) {
  if (!weights.defined()) {
    return std::vector<double>(size, 1.0);
  }
  std::vector<double> numbers = read_column(weights, "weights", where);
  TESSERA_CHECK_VALUE(
      numbers.size() == size,
      "{} expected a weight for each of {} examples, but got {}. If all weights are 1, leave them out.",
      where,
      size,
      numbers.size());
  check_weights(numbers, where);
  return numbers;
}

MetricInputs read_predictions(
    const StepResult& batch,
    const std::string& where) {
  MetricInputs inputs{
      .predictions = read_column(batch.predictions, "predictions", where)};
  inputs.weights =
      read_weights(batch.weights, inputs.predictions.size(), where);
  inputs.epsilon = epsilon_of(batch.predictions.scalar_type());
  return inputs;
}

MetricInputs read_scores(const StepResult& batch, const std::string& where) {
  MetricInputs inputs = read_predictions(batch, where);
  inputs.labels = read_column(batch.labels, "labels", where);
  check_sizes(inputs.labels.size(), static_cast<int64_t>(inputs.size()), where);
  return inputs;
}

MetricInputs read_classes(const StepResult& batch, const std::string& where) {
  const at::Tensor& predictions = batch.predictions;
  MetricInputs inputs;
  if (predictions.defined() && predictions.dim() == 2 &&
      predictions.size(1) > 1) {
    inputs = {
        .predictions = read_values(predictions, "predictions", where),
        .labels = read_column(batch.labels, "labels", where),
        .classes = predictions.size(1),
        .epsilon = epsilon_of(predictions.scalar_type())};
    check_sizes(inputs.labels.size(), predictions.size(0), where);
    inputs.weights = read_weights(batch.weights, inputs.labels.size(), where);
  } else {
    inputs = read_scores(batch, where);
  }
  const auto classes =
      static_cast<double>(std::max<int64_t>(2, inputs.classes));
  for (const double label : inputs.labels) {
    TESSERA_CHECK_VALUE(
        label >= 0.0 && label < classes && label == std::floor(label),
        "{} labels must be classes 0 to {}, but got {}. Number the classes from 0.",
        where,
        classes - 1.0,
        label);
  }
  return inputs;
}

MetricInputs read_two_classes(
    const StepResult& batch,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      !batch.predictions.defined() || batch.predictions.dim() < 2 ||
          batch.predictions.size(1) == 1,
      "{} predictions must have shape [n] or [n, 1], but got {}. Give the scores of one class.",
      where,
      batch.predictions.sizes());
  return read_classes(batch, where);
}

double ratio_of(const std::vector<double>& sums) {
  return sums[1] > 0.0 ? sums[0] / sums[1] : kUndefined;
}

ScoreLists read_score_lists(const StepResult& batch, const std::string& where) {
  const auto& [predictions, labels, weights] =
      std::tie(batch.predictions, batch.labels, batch.weights);
  TESSERA_CHECK_VALUE(
      predictions.defined() && predictions.dim() == 2 && labels.defined() &&
          labels.sizes() == predictions.sizes(),
      "{} predictions and labels must be lists of shape [queries, list], but got {} and {}. Pass one label for each score; -1 leaves an item out.",
      where,
      describe(predictions),
      describe(labels));
  ScoreLists lists{
      .scores = read_values(predictions, "predictions", where),
      .labels = read_values(labels, "labels", where),
      .queries = static_cast<size_t>(predictions.size(0)),
      .list = static_cast<size_t>(predictions.size(1))};
  for (const double label : lists.labels) {
    TESSERA_CHECK_VALUE(
        std::isfinite(label),
        "{} labels must be finite, but got {}. Correct the labels.",
        where,
        label);
  }
  if (!weights.defined()) {
    lists.weights.assign(lists.scores.size(), 1.0);
    return lists;
  }
  const bool is_per_query =
      weights.dim() == 1 && weights.size(0) == predictions.size(0);
  TESSERA_CHECK_VALUE(
      is_per_query || weights.sizes() == predictions.sizes(),
      "{} weights must have shape [{}] or {}, but got {}. Pass one weight per query or per item.",
      where,
      lists.queries,
      predictions.sizes(),
      weights.sizes());
  const std::vector<double> numbers = read_values(weights, "weights", where);
  check_weights(numbers, where);
  lists.weights.resize(lists.scores.size());
  for (size_t i = 0; i < lists.scores.size(); ++i) {
    lists.weights[i] = numbers[is_per_query ? i / lists.list : i];
  }
  return lists;
}

std::vector<int64_t> read_id_rows(
    const at::Tensor& ids,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      ids.defined() && ids.dim() == 2,
      "{} predictions must be ids of shape [n, retrieved], but got {}. Pass one row of retrieved ids for each example.",
      where,
      ids.defined() ? c10::str("shape ", ids.sizes()) : "an undefined tensor");
  return read_integers(ids, "predictions", where);
}

RetrievedIds read_retrieved_ids(
    const StepResult& batch,
    const std::string& where) {
  const auto& [predictions, labels, splits] =
      std::tie(batch.predictions, batch.labels, batch.label_splits);
  RetrievedIds ids{.ids = read_id_rows(predictions, where)};
  const int64_t queries = predictions.size(0);
  ids.per_query = static_cast<size_t>(predictions.size(1));
  check_column(labels, "labels", where);
  ids.relevant = read_integers(labels, "labels", where);
  if (splits.defined()) {
    check_column(splits, "label_splits", where);
    ids.splits = read_integers(splits, "label_splits", where);
    TESSERA_CHECK_VALUE(
        static_cast<int64_t>(ids.splits.size()) == queries + 1 &&
            ids.splits.front() == 0 &&
            ids.splits.back() == static_cast<int64_t>(ids.relevant.size()) &&
            std::ranges::is_sorted(ids.splits),
        "{} label_splits must have {} numbers, begin with 0, not decrease, and end with the number of labels, {}, but got {} numbers. Make the bags with RaggedFeature::from_lengths().",
        where,
        queries + 1,
        ids.relevant.size(),
        ids.splits.size());
  } else {
    check_sizes(ids.relevant.size(), queries, where);
    ids.splits.resize(static_cast<size_t>(queries) + 1);
    std::iota(ids.splits.begin(), ids.splits.end(), 0);
  }
  for (const int64_t label : ids.relevant) {
    TESSERA_CHECK_VALUE(
        label >= 0,
        "{} labels must be ids >= 0, but got {}. Correct the labels.",
        where,
        label);
  }
  return ids;
}

std::vector<int64_t> read_groups(
    const at::Tensor& groups,
    size_t size,
    const std::string& where) {
  check_column(groups, "groups", where);
  std::vector<int64_t> ids = read_integers(groups, "groups", where);
  TESSERA_CHECK_VALUE(
      ids.size() == size,
      "{} expected a group for each of {} examples, but got {}. Pass the user or query of each example.",
      where,
      size,
      ids.size());
  return ids;
}

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
