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

/// A checked batch of retrieved ids.
struct RetrievedIds {
  std::vector<int64_t> ids;  // [n * per_example]
  std::vector<int64_t> labels;  // [n], >= 0
  int64_t per_example = 0;

  const int64_t* row(size_t i) const {
    return ids.data() + i * static_cast<size_t>(per_example);
  }
};

/// Reads predictions [n, per_example] and labels [n] or [n, 1], int32 or int64.
/// Errors:  c10::ValueError naming `where`.
RetrievedIds read_ids(
    const at::Tensor& predictions,
    const at::Tensor& labels,
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
