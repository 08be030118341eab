// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/training_state.h"

#include <tessera/common/profile_scope.h>

#include "packages/training/src/merged_metrics.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>

namespace tessera::training {

void LossMean::add(const StepResult& result, const std::string& where) {
  check_loss(result, where);
  const auto count =
      static_cast<double>(std::max<int64_t>(1, examples_of(result)));
  total += count * result.loss.item<double>();
  weight += count;
}

double LossMean::result() const {
  return weight > 0.0 ? total / weight
                      : std::numeric_limits<double>::quiet_NaN();
}

at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void restore_generator(
    const TrainingState& state,
    const at::Tensor& generator) {
  if (!state.strategy.is_sharded()) {
    set_generator_state(generator);
  }
}

namespace {

// The number of examples of a StepResult or a TaskResult.
template <class Result>
int64_t count_examples(const Result& result) {
  if (result.label_splits.defined() && result.label_splits.dim() == 1) {
    return std::max<int64_t>(0, result.label_splits.size(0) - 1);
  }
  for (const at::Tensor* tensor : {&result.labels, &result.predictions}) {
    if (tensor->defined() && tensor->dim() > 0) {
      return tensor->size(0);
    }
  }
  return 0;
}

// Returns the result of a task as the result of a step.
StepResult step_of(const TaskResult& task, int64_t examples) {
  return {
      .loss = task.loss,
      .predictions = task.predictions,
      .labels = task.labels,
      .weights = task.weights,
      .label_splits = task.label_splits,
      .groups = task.groups,
      .examples = examples};
}

const TaskResult& task_of(
    const StepResult& result,
    const Metric& metric,
    const std::string& where) {
  const auto found =
      std::ranges::find(result.tasks, metric.task(), &TaskResult::name);
  TESSERA_CHECK_VALUE(
      found != result.tasks.end(),
      "{} the metric '{}' needs the task '{}', but the step gave [{}]. Return a StepResult whose tasks have it.",
      where,
      metric.name(),
      metric.task(),
      join_names(result.tasks, shortened_name));
  return *found;
}

}  // namespace

int64_t examples_of(const StepResult& result) {
  int64_t examples =
      result.examples > 0 ? result.examples : count_examples(result);
  for (size_t i = 0; examples == 0 && i < result.tasks.size(); ++i) {
    examples = count_examples(result.tasks[i]);
  }
  return examples;
}

void update_metrics(
    const Metrics& metrics,
    const StepResult& result,
    const std::string& where) {
  const ProfileScope scope("tessera::metrics");
  StepResult batch = result;
  batch.examples = examples_of(result);
  for (const auto& metric : metrics) {
    if (!metric->task().empty()) {
      const TaskResult& task = task_of(result, *metric, where);
      const int64_t examples = count_examples(task);
      metric->update_batch(
          step_of(task, examples > 0 ? examples : batch.examples));
      continue;
    }
    TESSERA_CHECK_VALUE(
        result.predictions.defined(),
        "{} metrics need predictions, but the step gave none. Return a StepResult with predictions and labels{}.",
        where,
        result.tasks.empty() ? "" : ", or use a TaskMetric");
    metric->update_batch(batch);
  }
}

void set_log_names(
    TrainingState& state,
    const std::optional<Metrics>& validation) {
  const auto add_log_name = [&](const std::string& name, Better better) {
    TESSERA_CHECK_VALUE(
        !name.empty() && name != "epoch",
        "[fit] a value can't be logged as '{}'. Give it another name.",
        name);
    TESSERA_CHECK_VALUE(
        state.better.emplace(name, better).second,
        "[fit] two values would be logged as '{}'. Rename one of them.",
        name);
    state.log_names.push_back(name);
  };
  const auto add_metric_names = [&](const std::string& prefix,
                                    const Metrics& metrics) {
    add_log_name(prefix + "loss", Better::kLower);
    for (const auto& metric : metrics) {
      for (const std::string& name : log_names_of(*metric, *state.ranks)) {
        add_log_name(prefix + name, metric->better());
      }
    }
  };
  add_metric_names("", state.metrics);
  if (validation) {
    add_metric_names("val_", *validation);
  }
  for (const auto& callback : state.callbacks) {
    for (const std::string& name : callback->log_names()) {
      add_log_name(name, callback->better(name));
    }
  }
}

}  // namespace tessera::training
