// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::training {

/// A checked batch of a metric, in float64.
struct MetricInputs {
  std::vector<double> predictions;  // [n * classes]
  std::vector<double> labels;  // [n]
  int64_t classes = 1;  // 1: one score per example
  double epsilon = 0.0;  // of the predictions' dtype; of float64 for integers

  size_t size() const {
    return labels.size();
  }
  const double* row(size_t i) const {
    return predictions.data() + i * static_cast<size_t>(classes);
  }
};

/// Reads one score per example, from predictions [n] or [n, 1].
/// Errors:  c10::ValueError naming `where`.
MetricInputs read_scores(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where);

/// Reads predictions [n] or [n, 1] with labels 0 and 1, or predictions [n, classes] with
/// labels in [0, classes).
/// Errors:  c10::ValueError naming `where`.
MetricInputs read_classes(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where);

/// As read_classes(), but refuses more than one score per example.
MetricInputs read_two_classes(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where);

/// A checked batch of lists of scores.
struct ScoreLists {
  std::vector<double> scores = {};  // [queries * list]
  std::vector<double> labels = {};  // [queries * list]
  std::vector<double> weights = {};  // [queries * list]; empty: all 1
  size_t queries = 0;
  size_t list = 0;
};

/// Reads predictions and labels [queries, list], and weights [queries] or
/// [queries, list].
/// Errors:  c10::ValueError naming `where`.
ScoreLists read_score_lists(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& weights,
    const std::string& where);

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

/// Reads predictions [queries, per_query] int32 or int64. Without `splits`, labels
/// [queries] or [queries, 1] are the relevant id of each query. Otherwise they are the
/// values of bags.
/// Errors:  c10::ValueError naming `where`.
RetrievedIds read_retrieved_ids(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const at::Tensor& splits,
    const std::string& where);

/// Reads a matrix of ids, int32 or int64.
/// Errors:  c10::ValueError naming `where`.
std::vector<int64_t> read_id_rows(
    const at::Tensor& ids,
    const std::string& where);

/// Reads one group per example, int32 or int64.
/// Errors:  c10::ValueError naming `where`.
std::vector<int64_t> read_groups(
    const at::Tensor& groups,
    size_t size,
    const std::string& where);

/// Reads a tensor [n] or [n, 1].
/// Errors:  c10::ValueError naming `where`, also for NaN.
std::vector<double> read_column(
    const at::Tensor& values,
    const char* what,
    const std::string& where);

/// Reads `size` weights. Returns an empty vector if `weights` is undefined.
std::vector<double> read_weights(
    const at::Tensor& weights,
    size_t size,
    const std::string& where);

}  // namespace tessera::training
