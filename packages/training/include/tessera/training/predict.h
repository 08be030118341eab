// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/precision.h>
#include <tessera/training/batch_source.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace tessera::training {

/// The predictions for all examples of a source, in their order.
struct Predictions {
  /// Undefined if the steps return only predictions of tasks.
  at::Tensor predictions = {};  // [n, ...]
  /// Undefined if the steps return no labels.
  at::Tensor labels = {};  // [n, ...]
  /// One entry for each of StepResult::tasks, with its name, predictions and labels.
  std::vector<TaskResult> tasks = {};
};

// snippet: tests/docs/reference_training_test.cpp Predictions
/// Returns the predictions and labels of all batches of `pass`, under NoGradGuard.
///
///   model->eval();
///   const Predictions found = predict(*make_pass(test_batches, loss_of));
///   // found.predictions and found.labels: [examples]
///
/// The steps need not return a loss. Use evaluate() for metrics if the predictions do not
/// fit in memory. The tensors of a step are kept until the end, so a step must return new
/// tensors and not refill one buffer. Without a precision, that of a PrecisionScope around
/// the call counts.
/// Errors:  c10::ValueError if there is no batch, or if only some batches have labels;
///          c10::ValueError naming the batch if it has no predictions, if it has another
///          number of labels than of predictions, if it has other tasks than the first
///          batch, or if its tensors do not fit those of the first batch.
Predictions predict(Pass& pass, std::optional<Precision> precision = {});

}  // namespace tessera::training
