// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/metrics.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tessera::training {

// snippet: tests/docs/reference_training_test.cpp TaskMetric
/// A metric of one task of a step that learns several. Its name is "click_auc" for an AUC
/// of the task "click". With the `loss_of` of TaskResult's example:
///
///   const History history =
///       fit(batches,
///           make_train_step(optimizer, loss_of),
///           {.epochs = 2,
///            .metrics = {
///                std::make_shared<TaskMetric>("click", AUC()),
///                std::make_shared<TaskMetric>("purchase", AUC()),
///                std::make_shared<TaskLoss>("purchase")}});
///   const double auc = history["purchase_auc"].back();
///
/// Errors:  c10::ValueError for an empty task and a null metric; from fit() for a task
///          that the step did not return, naming those that it did.
class TaskMetric : public Metric {
 public:
  TaskMetric(std::string task, std::shared_ptr<Metric> metric);

  template <std::derived_from<Metric> M>
  TaskMetric(std::string task, M metric)
      : TaskMetric(
            std::move(task),
            std::shared_ptr<Metric>(std::make_shared<M>(std::move(metric)))) {}

  std::string task() const override {
    return task_;
  }
  void update_batch(const StepResult& batch) override {
    metric_->update_batch(batch);
  }
  double result() const override {
    return metric_->result();
  }
  void reset() override {
    metric_->reset();
  }
  std::unique_ptr<Metric> make_empty() const override {
    return std::make_unique<TaskMetric>(
        task_, std::shared_ptr<Metric>(metric_->make_empty()));
  }
  Better better() const override {
    return metric_->better();
  }
  bool is_cheap() const override {
    return metric_->is_cheap();
  }
  std::optional<int64_t> depth() const override {
    return metric_->depth();
  }
  at::Tensor state() const override {
    return metric_->state();
  }
  void load_state(const at::Tensor& state) override {
    metric_->load_state(state);
  }
  void merge(const at::Tensor& state) override {
    metric_->merge(state);
  }

 private:
  std::string task_;
  std::shared_ptr<Metric> metric_;
};

/// The mean over examples of TaskResult::loss of one task, without its loss_weight. The
/// name is "click_loss" for the task "click". TaskMetric has an example. The mean losses of
/// ranks add up, as their losses do: see fit().
/// Errors:  c10::ValueError for an empty task; from fit() for a task without a loss.
class TaskLoss : public SumMetric {
 public:
  explicit TaskLoss(std::string task);

  std::string task() const override {
    return task_;
  }
  void update_batch(const StepResult& batch) override;
  double result() const override;
  void merge(const at::Tensor& state) override;
  std::unique_ptr<Metric> make_empty() const override {
    return std::make_unique<TaskLoss>(task_);
  }
  Better better() const override {
    return Better::kLower;
  }

 private:
  std::string task_;
};

}  // namespace tessera::training
