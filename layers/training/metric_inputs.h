// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::training {

/// A checked batch of a metric, in float64.
struct MetricInputs {
  std::vector<double> predictions;  // [n * classes]
  std::vector<double> labels;  // [n]
  int64_t classes = 1;  // 1: one score per example

  size_t size() const {
    return labels.size();
  }
  const double* row(size_t i) const {
    return predictions.data() + i * static_cast<size_t>(classes);
  }
};

/// One score per example: predictions [n] or [n, 1].
/// Errors:  c10::ValueError naming `where`.
MetricInputs read_scores(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where);

/// As read_scores(), with labels 0 and 1; or predictions [n, classes] with labels
/// that are classes.
MetricInputs read_classes(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where);

/// A checked batch of ids that were retrieved.
struct RetrievedIds {
  std::vector<int64_t> ids;  // [n * per_example]
  std::vector<int64_t> labels;  // [n], >= 0
  int64_t per_example = 0;

  const int64_t* row(size_t i) const {
    return ids.data() + i * static_cast<size_t>(per_example);
  }
};

/// Predictions [n, per_example] and labels [n] or [n, 1], int32 or int64.
/// Errors:  c10::ValueError naming `where`.
RetrievedIds read_ids(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where);

/// [n] or [n, 1] as a vector, without NaN.
std::vector<double> read_column(
    const at::Tensor& values,
    const char* what,
    const std::string& where);

/// `size` weights; none when `weights` is undefined.
std::vector<double> read_weights(
    const at::Tensor& weights,
    size_t size,
    const std::string& where);

}  // namespace tessera::training
