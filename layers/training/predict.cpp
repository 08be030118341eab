// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/predict.h>

#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <optional>
#include <vector>

namespace tessera::training {

namespace {

// The sizes after the first, which all batches must share.
std::vector<int64_t> inner_sizes(const at::Tensor& values) {
  return values.sizes().slice(1).vec();
}

void check_tensor(
    const at::Tensor& values,
    const at::Tensor& first,
    const char* what,
    size_t batch) {
  TESSERA_CHECK_VALUE(
      values.dim() >= 1,
      "[predict] the {} of batch {} must have the shape [batch, ...], but are a scalar. Return one row for each example.",
      what,
      batch);
  TESSERA_CHECK_VALUE(
      values.layout() == at::kStrided && values.device() == first.device() &&
          values.dtype() == first.dtype() &&
          inner_sizes(values) == inner_sizes(first),
      "[predict] the {} of all batches must agree but for the number of rows, but batch {} has {} and batch 0 has {}. Return the same kind of tensor from each step.",
      what,
      batch,
      describe(values),
      describe(first));
}

void check_batch(
    const StepResult& result,
    const std::vector<at::Tensor>& predictions) {
  check_tensor(
      result.predictions,
      predictions.empty() ? result.predictions : predictions[0],
      "predictions",
      predictions.size());
}

void check_labels(
    const StepResult& result,
    const std::vector<at::Tensor>& labels,
    size_t batch) {
  check_tensor(
      result.labels,
      labels.empty() ? result.labels : labels[0],
      "labels",
      batch);
  TESSERA_CHECK_VALUE(
      result.labels.size(0) == result.predictions.size(0),
      "[predict] batch {} has {} predictions but {} labels. Return one label for each prediction.",
      batch,
      result.predictions.size(0),
      result.labels.size(0));
}

}  // namespace

Predictions predict(Pass& pass) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> predictions;
  std::vector<at::Tensor> labels;
  pass.begin(0);
  while (const std::optional<StepResult> result = pass.step()) {
    TESSERA_CHECK_VALUE(
        result->predictions.defined(),
        "[predict] batch {} has no predictions. Return a StepResult with predictions from the step.",
        predictions.size());
    check_batch(*result, predictions);
    predictions.push_back(result->predictions);
    if (result->labels.defined()) {
      check_labels(*result, labels, predictions.size() - 1);
      labels.push_back(result->labels);
    }
  }
  pass.end();
  TESSERA_CHECK_VALUE(
      !predictions.empty(),
      "[predict] expected batches, but the source gave none.");
  TESSERA_CHECK_VALUE(
      labels.empty() || labels.size() == predictions.size(),
      "[predict] expected labels for all {} batches or for none, but got them for {}.",
      predictions.size(),
      labels.size());
  return {
      .predictions = at::cat(predictions),
      .labels = labels.empty() ? at::Tensor() : at::cat(labels)};
}

}  // namespace tessera::training
