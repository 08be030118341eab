// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/predict.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/tensor_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>

namespace tessera::training {

namespace {

// Checks that at::cat() can append `values` to `before`, the tensors of the earlier
// batches.
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

// The results of the steps so far for one task, or those of the steps themselves.
struct Collected {
  std::string task = {};  // empty: of the steps themselves
  std::vector<at::Tensor> predictions = {};
  std::vector<at::Tensor> labels = {};

  // Adds the predictions and labels of a StepResult or a TaskResult.
  template <class Result>
  void add(const Result& result, size_t batch) {
    const std::string of_task =
        task.empty() ? "" : " of task '" + shorten(task) + "'";
    TESSERA_CHECK_VALUE(
        result.predictions.defined(),
        "[predict] batch {} has no predictions{}. Return a StepResult with predictions from the step.",
        batch,
        of_task);
    check_fits(result.predictions, predictions, "predictions", batch);
    predictions.push_back(result.predictions);
    if (result.labels.defined()) {
      check_fits(result.labels, labels, "labels", batch);
      TESSERA_CHECK_VALUE(
          result.labels.size(0) == result.predictions.size(0),
          "[predict] batch {} has {} predictions but {} labels{}. Return one label for each prediction.",
          batch,
          result.predictions.size(0),
          result.labels.size(0),
          of_task);
      labels.push_back(result.labels);
    }
  }

  TaskResult join() const {
    TESSERA_CHECK_VALUE(
        labels.empty() || labels.size() == predictions.size(),
        "[predict] expected labels for all {} batches or for none, but got them for {}. Return labels from each step, or from none.",
        predictions.size(),
        labels.size());
    return {
        .name = task,
        .predictions = at::cat(predictions),
        .labels = labels.empty() ? at::Tensor() : at::cat(labels)};
  }
};

}  // namespace

Predictions predict(Pass& pass, std::optional<Precision> precision) {
  const PrecisionScope scope(precision);
  const at::NoGradGuard no_grad;
  Collected all;
  std::vector<Collected> tasks;
  size_t batches = 0;
  pass.begin(0);
  for (; const std::optional<StepResult> result = pass.step(); ++batches) {
    const std::vector<TaskResult>& found = result->tasks;
    for (size_t i = 0; batches == 0 && i < found.size(); ++i) {
      tasks.push_back({.task = found[i].name});
    }
    TESSERA_CHECK_VALUE(
        std::ranges::equal(
            found, tasks, {}, &TaskResult::name, &Collected::task),
        "[predict] batch {} has the tasks [{}], but batch 0 has [{}]. Return the same tasks from each step.",
        batches,
        join_names(found, shortened_name),
        join_names(tasks, &Collected::task));
    for (size_t i = 0; i < found.size(); ++i) {
      tasks[i].add(found[i], batches);
    }
    // A step may have predictions of its own in addition to those of its tasks.
    const bool has_own =
        batches == 0 ? result->predictions.defined() : !all.predictions.empty();
    if (tasks.empty() || has_own) {
      all.add(*result, batches);
    }
  }
  pass.end();
  TESSERA_CHECK_VALUE(
      batches > 0,
      "[predict] expected batches, but the source gave none. Pass a source that can be read again, or a function that opens it.");
  Predictions joined;
  if (!all.predictions.empty()) {
    const TaskResult own = all.join();
    joined.predictions = own.predictions;
    joined.labels = own.labels;
  }
  for (const Collected& task : tasks) {
    joined.tasks.push_back(task.join());
  }
  return joined;
}

}  // namespace tessera::training
