// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/predict.h>

#include "src/common/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <optional>
#include <vector>

namespace tessera::training {

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
    predictions.push_back(result->predictions);
    if (result->labels.defined()) {
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
