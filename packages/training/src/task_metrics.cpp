// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/task_metrics.h>

#include "packages/training/src/metric_inputs.h"
#include "src/common/check.h"

#include <algorithm>

namespace tessera::training {

namespace {

void check_task_name(const std::string& task, const char* where) {
  TESSERA_CHECK_VALUE(
      !task.empty(),
      "[{}] expected the name of a task, but got ''. Pass the name of a TaskResult.",
      where);
}

std::string task_metric_name(
    const std::string& task,
    const std::shared_ptr<Metric>& metric) {
  check_task_name(task, "TaskMetric");
  TESSERA_CHECK_VALUE(
      metric != nullptr,
      "[TaskMetric] expected a metric of task '{}', but got nullptr. Make it.",
      task);
  return task + "_" + metric->name();
}

}  // namespace

TaskMetric::TaskMetric(std::string task, std::shared_ptr<Metric> metric)
    : Metric(task_metric_name(task, metric)),
      task_(std::move(task)),
      metric_(std::move(metric)) {}

TaskLoss::TaskLoss(std::string task)
    : SumMetric(task + "_loss", 2), task_(std::move(task)) {
  check_task_name(task_, "TaskLoss");
}

void TaskLoss::update_batch(const StepResult& batch) {
  TESSERA_CHECK_VALUE(
      batch.loss.defined(),
      "[Metric '{}'] the task has no loss. Set TaskResult::loss in the step of fit() or evaluate(), or remove the metric.",
      name());
  const auto count = static_cast<double>(std::max<int64_t>(1, batch.examples));
  sums()[0] += count * batch.loss.item<double>();
  sums()[1] += count;
}

double TaskLoss::result() const {
  return ratio_of(sums());
}

// The mean losses of ranks add up, as their gradients do.
void TaskLoss::merge(const at::Tensor& state) {
  const double own = sums()[1] > 0.0 ? result() : 0.0;
  const double own_weight = sums()[1];
  load_state(state);
  const double mean = own + (sums()[1] > 0.0 ? result() : 0.0);
  sums()[1] += own_weight;
  sums()[0] = mean * sums()[1];
}

}  // namespace tessera::training
