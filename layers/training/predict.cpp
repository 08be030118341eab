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

// Checks that at::cat() can append `values` to the tensors of the batches before.
void check_fits(
    const at::Tensor& values,
    const std::vector<at::Tensor>& before,
    const char* what,
    size_t batch) {
  TESSERA_CHECK_VALUE(
      values.layout() == at::kStrided,
      "[predict] the {} of batch {} must be a dense tensor, but got {}. Return a dense tensor from the step.",
      what,
      batch,
      describe(values));
  const at::Tensor& first = before.empty() ? values : before[0];
  TESSERA_CHECK_VALUE(
      values.dim() >= 1,
      "[predict] the {} of batch {} must have the shape [batch, ...], but are a scalar. Return one row for each example.",
      what,
      batch);
  TESSERA_CHECK_VALUE(
      values.device() == first.device() && values.dtype() == first.dtype() &&
          values.sizes().slice(1) == first.sizes().slice(1),
      "[predict] the {} of all batches must have the same device, dtype and shape, except for the number of rows, but batch {} has {} and batch 0 has {}. Return the same kind of tensor from each step.",
      what,
      batch,
      describe(values),
      describe(first));
}

}  // namespace

Predictions predict(Pass& pass) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> predictions;
  std::vector<at::Tensor> labels;
  pass.begin(0);
  while (const std::optional<StepResult> result = pass.step()) {
    const size_t batch = predictions.size();
    TESSERA_CHECK_VALUE(
        result->predictions.defined(),
        "[predict] batch {} has no predictions. Return a StepResult with predictions from the step.",
        batch);
    check_fits(result->predictions, predictions, "predictions", batch);
    predictions.push_back(result->predictions);
    if (result->labels.defined()) {
      check_fits(result->labels, labels, "labels", batch);
      TESSERA_CHECK_VALUE(
          result->labels.size(0) == result->predictions.size(0),
          "[predict] batch {} has {} predictions but {} labels. Return one label for each prediction.",
          batch,
          result->predictions.size(0),
          result->labels.size(0));
      labels.push_back(result->labels);
    }
  }
  pass.end();
  TESSERA_CHECK_VALUE(
      !predictions.empty(),
      "[predict] expected batches, but the source gave none. Pass a source that can be read again, or a function that opens it.");
  TESSERA_CHECK_VALUE(
      labels.empty() || labels.size() == predictions.size(),
      "[predict] expected labels for all {} batches or for none, but got them for {}. Return labels from each step, or from none.",
      predictions.size(),
      labels.size());
  return {
      .predictions = at::cat(predictions),
      .labels = labels.empty() ? at::Tensor() : at::cat(labels)};
}

}  // namespace tessera::training
