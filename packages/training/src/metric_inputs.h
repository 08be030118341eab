// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/metrics.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::training {

/// The result of a metric that is not defined for its examples.
constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

/// The beginning of the error messages of a metric.
std::string where_of(const std::string& metric);

/// `name`, or `otherwise` if `name` is empty.
inline std::string name_or(const std::string& name, std::string otherwise) {
  return name.empty() ? std::move(otherwise) : name;
}

at::Tensor metric_state(const std::vector<double>& numbers);

/// Errors:  c10::ValueError naming the metric unless `state` is float64 [n].
std::vector<double> read_state(
    const at::Tensor& state,
    const std::string& metric);

/// Adds an id to a state. An id has two numbers, because a double would round large ids.
void append_id(std::vector<double>& numbers, int64_t id);
/// Reads the id that append_id() wrote at `position`.
int64_t id_at(const std::vector<double>& numbers, size_t position);

// The errors of the following functions are c10::ValueErrors that begin with `where`.

/// A checked batch of a metric, in float64.
struct MetricInputs {
  std::vector<double> predictions = {};  // [n * classes]
  std::vector<double> labels = {};  // [n]; empty if the metric takes none
  std::vector<double> weights = {};  // [n]; 1 if the batch has none
  int64_t classes = 1;  // 1: one score per example
  double epsilon = 0.0;  // of the predictions' dtype; of float64 for integers

  size_t size() const {
    return weights.size();
  }
  const double* row(size_t i) const {
    return predictions.data() + i * static_cast<size_t>(classes);
  }
};

/// Reads predictions [n] or [n, 1], and ignores labels.
MetricInputs read_predictions(
    const StepResult& batch,
    const std::string& where);

/// Reads one score and one label per example, each [n] or [n, 1].
MetricInputs read_scores(const StepResult& batch, const std::string& where);

/// Reads predictions [n] or [n, 1] with labels 0 and 1, or predictions [n, classes] with
/// labels in [0, classes).
MetricInputs read_classes(const StepResult& batch, const std::string& where);

/// As read_classes(), but refuses more than one score per example.
MetricInputs read_two_classes(
    const StepResult& batch,
    const std::string& where);

/// sums[0] / sums[1], or kUndefined unless sums[1] > 0.
double ratio_of(const std::vector<double>& sums);

/// Adds weight * value_of(i) to sums[0], and the weight to sums[1], for each example.
template <class ValueOf>
void add_values(
    std::vector<double>& sums,
    const MetricInputs& inputs,
    const ValueOf& value_of) {
  std::vector<double> values;  // all first, as value_of() may raise
  for (size_t i = 0; i < inputs.size(); ++i) {
    values.push_back(value_of(i));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    sums[0] += inputs.weights[i] * values[i];
    sums[1] += inputs.weights[i];
  }
}

/// The rule of a metric that is the mean of `value_of(inputs, i, where)` over the examples
/// that `read` returns.
template <class ValueOf>
detail::SumRule mean_rule(
    Better better,
    MetricInputs (*read)(const StepResult& batch, const std::string& where),
    ValueOf value_of) {
  return {
      .better = better,
      .add =
          [read, value_of](
              const StepResult& batch,
              const std::string& where,
              std::vector<double>& sums) {
            const MetricInputs inputs = read(batch, where);
            add_values(sums, inputs, [&](size_t i) {
              return value_of(inputs, i, where);
            });
          },
      .result = ratio_of};
}

/// A checked batch of lists of scores.
struct ScoreLists {
  std::vector<double> scores = {};  // [queries * list]
  std::vector<double> labels = {};  // [queries * list]
  std::vector<double> weights = {};  // [queries * list]
  size_t queries = 0;
  size_t list = 0;
};

/// Reads predictions and labels [queries, list], and weights [queries] or
/// [queries, list].
ScoreLists read_score_lists(const StepResult& batch, const std::string& where);

/// A checked batch of retrieved ids, with the relevant ids of each query.
struct RetrievedIds {
  std::vector<int64_t> ids = {};  // [queries * per_query]
  std::vector<int64_t> relevant = {};  // [nnz], >= 0
  std::vector<int64_t> splits = {};  // [queries + 1]
  size_t per_query = 0;

  size_t queries() const {
    return splits.size() - 1;
  }
  std::span<const int64_t> row(size_t query) const {
    return {ids.data() + query * per_query, per_query};
  }
  std::span<const int64_t> relevant_of(size_t query) const {
    return {
        relevant.data() + splits[query], relevant.data() + splits[query + 1]};
  }
};

/// Reads predictions [queries, per_query] int32 or int64. Without label_splits, labels
/// [queries] or [queries, 1] are the relevant id of each query. Otherwise they are the
/// values of bags.
RetrievedIds read_retrieved_ids(
    const StepResult& batch,
    const std::string& where);

/// Reads a matrix of ids, int32 or int64.
std::vector<int64_t> read_id_rows(
    const at::Tensor& ids,
    const std::string& where);

/// Reads one group per example, int32 or int64.
std::vector<int64_t> read_groups(
    const at::Tensor& groups,
    size_t size,
    const std::string& where);

/// Reads `size` weights, which are 1 if `weights` is undefined.
std::vector<double> read_weights(
    const at::Tensor& weights,
    size_t size,
    const std::string& where);

/// How often a positive example has a higher score than a negative one. Equal scores count
/// half. NaN without examples of both classes. Both arguments must be sorted.
double area_under_roc(
    const detail::WeightedScores& positives,
    const detail::WeightedScores& negatives);

/// -log p(label) of example i. Probabilities are clipped to [eps, 1 - eps].
/// Errors:  c10::ValueError beginning with `where` for probabilities outside of [0, 1],
///          or that do not sum to 1.
double log_loss_of(
    const MetricInputs& inputs,
    size_t i,
    ScoreKind scores,
    const std::string& where);

/// The probability of class 1 of each example of two classes.
/// Errors:  c10::ValueError beginning with `where` for numbers outside of [0, 1].
std::vector<double> probabilities_of(
    const MetricInputs& inputs,
    ScoreKind scores,
    const std::string& where);

}  // namespace tessera::training
