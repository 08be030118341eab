// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/train_step.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::training {

/// Whether a higher or a lower value of a metric is better.
enum class Better { kHigher, kLower, kUnknown };

// snippet: tests/docs/reference_training_test.cpp Metric
/// A value over all examples since the last reset(). It does not depend on how they were
/// split into batches. Sums are float64, in the order of the examples.
///
///   LogLoss log_loss({.scores = ScoreKind::kLogits});
///   for (const Batch& batch : test_batches) {
///     log_loss.update(model->forward(batch.features), batch.click);
///   }
///   std::cout << log_loss.name() << " " << log_loss.result() << "\n";
///
/// An example with weight w counts as w examples. Weights have shape `[batch]`; if
/// undefined, each weight is 1. result() is NaN if the metric is not defined: there are
/// no examples, or the weights sum to 0.
/// Errors:  update() raises c10::ValueError for undefined tensors, other shapes,
///          NaN, and negative or infinite weights; the metric is not changed then.
class Metric {
 public:
  virtual ~Metric() = default;

  std::string name() const {
    return name_;
  }
  /// A metric of your own overrides update() or update_batch(). By default, each of them
  /// calls the other.
  /// Errors:  c10::NotImplementedError if neither is overridden.
  virtual void update(
      const at::Tensor& predictions,
      const at::Tensor& labels = {},
      const at::Tensor& weights = {});
  /// Like update(), but the batch may also have inputs that only some metrics need. The
  /// other metrics ignore `groups`. fit() passes the result of each step. If the metric
  /// has a task(), fit() passes a StepResult made from the TaskResult of this task. In
  /// both cases, StepResult::examples is the number of examples over which the loss is a
  /// mean.
  /// Errors:  as update(); c10::ValueError for `label_splits` if the metric does not
  ///          take bags of labels.
  virtual void update_batch(const StepResult& batch);
  virtual double result() const = 0;
  virtual void reset() = 0;

  /// Returns the same metric without any examples.
  virtual std::unique_ptr<Metric> make_empty() const = 0;
  virtual Better better() const {
    return Better::kUnknown;
  }
  /// Whether result() is cheap enough to call it after each step.
  virtual bool is_cheap() const {
    return true;
  }

  /// The name of the task whose TaskResult the metric takes. Empty: the predictions of the
  /// StepResult itself.
  virtual std::string task() const {
    return {};
  }

  /// The number of retrieved ids of an example that the metric uses. Unset: it takes no
  /// retrieved ids, or all of them.
  virtual std::optional<int64_t> depth() const {
    return std::nullopt;
  }

  /// The state for a checkpoint in the middle of an epoch: float64 `[n]`.
  virtual at::Tensor state() const = 0;
  /// Errors:  c10::ValueError for the state of another metric.
  virtual void load_state(const at::Tensor& state) = 0;
  /// Adds the examples of another metric of the same kind. `state` is the state() of that
  /// metric, which may have no examples. fit() merges the metrics of all ranks. It logs a
  /// metric that cannot be merged once per rank, as "name_rank_0", "name_rank_1" and so
  /// on.
  /// Errors:  c10::NotImplementedError if the metric cannot be merged, which is the
  ///          default; c10::ValueError for the state of another metric.
  virtual void merge(const at::Tensor& state);

 protected:
  /// Errors:  c10::ValueError for an empty name.
  explicit Metric(std::string name);

 private:
  std::string name_;
  bool needs_update_ = false;  // update_batch() is not overridden
};

/// A metric whose state is a fixed number of sums. merge() adds them.
class SumMetric : public Metric {
 public:
  void reset() override;
  at::Tensor state() const override;
  void load_state(const at::Tensor& state) override;
  void merge(const at::Tensor& state) override;

 protected:
  SumMetric(std::string name, size_t count)
      : Metric(std::move(name)), sums_(count, 0.0) {}

  std::vector<double>& sums() {
    return sums_;
  }
  const std::vector<double>& sums() const {
    return sums_;
  }

 private:
  std::vector<double> sums_;
};

namespace detail {

/// Defines a RuleMetric, one of the metrics of this library whose state is a few sums.
struct SumRule {
  size_t count = 2;
  Better better = Better::kUnknown;
  /// Checks a batch, and then adds it to the sums. Its errors begin with `where`.
  std::function<void(
      const StepResult& batch,
      const std::string& where,
      std::vector<double>& sums)>
      add = {};
  std::function<double(const std::vector<double>& sums)> result = {};
};

/// A metric that a SumRule defines.
class RuleMetric : public SumMetric {
 public:
  RuleMetric(std::string name, SumRule rule)
      : SumMetric(std::move(name), rule.count), rule_(std::move(rule)) {}

  void update_batch(const StepResult& batch) override;
  double result() const override {
    return rule_.result(sums());
  }
  std::unique_ptr<Metric> make_empty() const override {
    return std::make_unique<RuleMetric>(name(), rule_);
  }
  Better better() const override {
    return rule_.better;
  }

 private:
  SumRule rule_;
};

/// Scores with their weights.
struct WeightedScores {
  std::vector<double> values = {};
  std::vector<double> weights = {};  // empty: all 1

  double weight(size_t i) const {
    return weights.empty() ? 1.0 : weights[i];
  }
  double total_weight() const;
  /// Sorts the scores in ascending order. Equal scores are sorted by weight, so that sums
  /// do not depend on the order of batches.
  void sort();
};

/// A metric of all scores of the two classes. It is exact, so it stores every score, with
/// 8 bytes per example, or 16 once weights were given. result() sorts them.
///
/// Shapes:  predictions [n] or [n, 1], any scores; as many labels, each 0 or 1.
class TwoClassMetric : public Metric {
 public:
  void update_batch(const StepResult& batch) override;
  double result() const override;
  void reset() override;
  bool is_cheap() const override {
    return false;
  }
  Better better() const override {
    return Better::kHigher;
  }
  std::unique_ptr<Metric> make_empty() const override {
    return std::unique_ptr<Metric>(new TwoClassMetric(name(), result_of_));
  }
  at::Tensor state() const override;
  void load_state(const at::Tensor& state) override;
  void merge(const at::Tensor& state) override;

 protected:
  /// The result for sorted scores.
  using ResultOf = double (*)(
      const WeightedScores& positives,
      const WeightedScores& negatives);

  TwoClassMetric(std::string name, ResultOf result_of)
      : Metric(std::move(name)), result_of_(result_of) {}

 private:
  ResultOf result_of_;
  // Mutable because result() sorts the scores.
  mutable WeightedScores positives_;
  mutable WeightedScores negatives_;
  bool has_weights_ = false;
};

}  // namespace detail

// snippet: tests/docs/reference_training_test.cpp AUC
/// The area under the ROC curve: how often a positive example has a higher score than a
/// negative one. Equal scores count half. NaN if all examples have the same class.
///
///   AUC auc;
///   auc.update(scores, clicks);
///   const double area = auc.result();  // 1: each click has a higher score
///
/// Shapes:  predictions [n] or [n, 1], any scores; as many labels, each 0 or 1.
/// Source:  scikit-learn's roc_auc_score.
class AUC : public detail::TwoClassMetric {
 public:
  explicit AUC(std::string name = "auc");
};

/// What the predictions of a classifier are.
enum class ScoreKind { kProbabilities, kLogits };

/// The kind of predictions of a LogLoss, NormalizedEntropy or Calibration, and its name in
/// logs.
struct ScoreMetricOptions {
  ScoreKind scores = ScoreKind::kProbabilities;
  /// If empty, a name such as "log_loss".
  std::string name = "";
};

// snippet: tests/docs/reference_training_test.cpp LogLoss
/// The mean of -log p(label).
///
/// Probabilities are clipped to [eps, 1 - eps], where eps is the machine epsilon of their
/// dtype. The loss of logits is exact, without clipping.
///
///   LogLoss log_loss({.scores = ScoreKind::kLogits});
///   log_loss.update(logits, clicks);
///   const double loss = log_loss.result();
///
/// Shapes:  predictions [n] or [n, 1], for class 1, with labels 0 and 1; or
///          [n, classes], with rows that sum to 1 and labels in [0, classes).
/// Source:  scikit-learn's log_loss.
class LogLoss : public detail::RuleMetric {
 public:
  explicit LogLoss(ScoreMetricOptions options = {});
};

// snippet: tests/docs/reference_training_test.cpp RMSE
/// The root of the mean squared difference.
///
///   RMSE rmse;
///   rmse.update(torch::tensor({3.0F, 5.0F}), torch::tensor({4.0F, 2.0F}));
///   const double error = rmse.result();  // sqrt((1 + 9) / 2)
///
/// Shapes:  predictions and labels [n] or [n, 1].
/// Source:  scikit-learn's root_mean_squared_error.
class RMSE : public detail::RuleMetric {
 public:
  explicit RMSE(std::string name = "rmse");
};

/// The threshold of an Accuracy, and its name in logs.
struct AccuracyOptions {
  /// With one score per example, a score above the threshold predicts class 1. Set 0 for
  /// logits.
  double threshold = 0.5;
  std::string name = "accuracy";
};

// snippet: tests/docs/reference_training_test.cpp Accuracy
/// How often the predicted class is the label.
///
///   Accuracy accuracy({.threshold = 0.0});  // for logits
///   accuracy.update(logits, clicks);
///   const double share = accuracy.result();
///
/// Shapes:  predictions [n] or [n, 1] with labels 0 and 1; or [n, classes] with
///          labels in [0, classes), where the first of equal largest scores wins.
/// Source:  scikit-learn's accuracy_score.
class Accuracy : public detail::RuleMetric {
 public:
  explicit Accuracy(AccuracyOptions options = {});
};

/// The number of classes that a TopKAccuracy compares, and its name in logs.
struct TopKAccuracyOptions {
  int64_t k = 5;
  /// If empty, "top_5_accuracy", with the value of k.
  std::string name = "";
};

// snippet: tests/docs/reference_training_test.cpp TopKAccuracy
/// How often the label is among the k classes with the largest scores. If scores are
/// equal, the later class ranks first.
///
///   TopKAccuracy accuracy({.k = 2});
///   accuracy.update(scores, classes);  // scores [n, classes]
///   const double share = accuracy.result();
///
/// Shapes:  predictions [n, classes], any scores; labels [n] or [n, 1] in
///          [0, classes).
/// Source:  scikit-learn's top_k_accuracy_score, also for the rule for equal scores.
class TopKAccuracy : public detail::RuleMetric {
 public:
  /// Errors:  c10::ValueError for k < 1.
  explicit TopKAccuracy(TopKAccuracyOptions options = {});
};

// snippet: tests/docs/reference_training_test.cpp Mean
/// The mean of the predictions. It ignores labels, which may be undefined. For a
/// calibrated model it equals the mean label.
///
///   Mean mean("mean_probability");
///   mean.update(probabilities);
///   const double probability = mean.result();
///
/// Shapes:  predictions [n] or [n, 1].
class Mean : public detail::RuleMetric {
 public:
  explicit Mean(std::string name = "mean");
};

}  // namespace tessera::training
