// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::training {

/// Whether a larger value of a metric is the better one.
enum class Better { kHigher, kLower, kUnknown };

/// A number about all examples seen since the last reset(), whatever the batches
/// they came in. Sums are float64, in the order of the examples.
///
///   AUC auc;
///   for (const auto& batch : batches) {
///     auc.update(model->forward(batch.features), batch.click);
///   }
///   std::cout << auc.name() << " " << auc.result();
///
/// Weights [batch] count an example as that many; empty: 1 each. result() is NaN
/// where the definition has no value: nothing seen, or weights that sum to 0.
/// Errors:  update() raises c10::ValueError for undefined tensors, other shapes,
///          NaN, and negative or infinite weights; nothing is counted then.
class Metric {
 public:
  virtual ~Metric() = default;

  const std::string& name() const {
    return name_;
  }
  virtual void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const at::Tensor& weights = {}) = 0;
  virtual double result() const = 0;
  virtual void reset() = 0;

  /// The same metric, with nothing seen.
  virtual std::unique_ptr<Metric> make_empty() const = 0;
  virtual Better better() const {
    return Better::kUnknown;
  }
  /// Whether result() is cheap enough to be shown after each step.
  virtual bool is_cheap() const {
    return true;
  }

  /// What was seen, for a checkpoint in the middle of an epoch: float64 [n].
  virtual at::Tensor state() const = 0;
  /// Errors:  c10::ValueError for a state that is not of this metric.
  virtual void load_state(const at::Tensor& state) = 0;

 protected:
  /// Errors:  c10::ValueError for an empty name.
  explicit Metric(std::string name);

 private:
  std::string name_;
};

/// A metric that is a function of sum(weight * value) / sum(weight).
class MeanMetric : public Metric {
 public:
  double result() const override;
  void reset() override;
  at::Tensor state() const override;
  void load_state(const at::Tensor& state) override;

 protected:
  using Metric::Metric;

  /// Counts value i with weight i.
  void add(const std::vector<double>& values, const at::Tensor& weights);
  virtual double result_of(double mean) const {
    return mean;
  }

 private:
  double total_ = 0.0;
  double weight_ = 0.0;
};

/// The area under the ROC curve: how often a positive example is scored higher
/// than a negative one; equal scores count half.
///
/// Exact, so it keeps every score: 8 bytes an example, 16 once weights were
/// given, sorted in result(). NaN when only one class was seen.
/// Shapes:  predictions [n] or [n, 1], any scores; labels as many of 0 and 1.
/// Source:  scikit-learn's roc_auc_score.
class AUC : public Metric {
 public:
  explicit AUC(std::string name = "auc") : Metric(std::move(name)) {}

  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const at::Tensor& weights = {}) override;
  double result() const override;
  void reset() override;
  std::unique_ptr<Metric> make_empty() const override;
  Better better() const override {
    return Better::kHigher;
  }
  bool is_cheap() const override {
    return false;
  }
  at::Tensor state() const override;
  void load_state(const at::Tensor& state) override;

 private:
  struct Kept {
    std::vector<double> values;
    std::vector<double> weights;  // empty: all 1

    void sort();
    double weight(size_t i) const {
      return weights.empty() ? 1.0 : weights[i];
    }
  };

  // Sorting changes nothing that can be seen.
  mutable Kept positives_;
  mutable Kept negatives_;
  bool has_weights_ = false;
};

/// What the predictions of a classifier are.
enum class ScoreKind { kProbabilities, kLogits };

/// What a LogLoss is given, and its name in logs.
struct LogLossOptions {
  ScoreKind scores = ScoreKind::kProbabilities;
  std::string name = "log_loss";
};

/// The mean of -log p(label).
///
/// Probabilities are clipped to [eps, 1 - eps], with the machine epsilon of
/// their dtype; the loss of logits is exact, without clipping.
/// Shapes:  predictions [n] or [n, 1], of class 1, with labels 0 and 1; or
///          [n, classes] with labels in [0, classes), rows summing to 1.
/// Source:  scikit-learn's log_loss.
class LogLoss : public MeanMetric {
 public:
  explicit LogLoss(LogLossOptions options = {});

  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const at::Tensor& weights = {}) override;
  std::unique_ptr<Metric> make_empty() const override;
  Better better() const override {
    return Better::kLower;
  }

 private:
  LogLossOptions options_;
};

/// The root of the mean squared difference.
/// Shapes:  predictions and labels [n] or [n, 1].
/// Source:  scikit-learn's root_mean_squared_error.
class RMSE : public MeanMetric {
 public:
  explicit RMSE(std::string name = "rmse") : MeanMetric(std::move(name)) {}

  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const at::Tensor& weights = {}) override;
  std::unique_ptr<Metric> make_empty() const override;
  Better better() const override {
    return Better::kLower;
  }

 protected:
  double result_of(double mean) const override;
};

/// What counts as a positive for an Accuracy, and its name in logs.
struct AccuracyOptions {
  /// With one score per example, a score above it is class 1. For logits set 0.
  double threshold = 0.5;
  std::string name = "accuracy";
};

/// How often the predicted class is the label.
/// Shapes:  predictions [n] or [n, 1] with labels 0 and 1; or [n, classes] with
///          labels in [0, classes), where the first of the largest counts.
/// Source:  scikit-learn's accuracy_score.
class Accuracy : public MeanMetric {
 public:
  explicit Accuracy(AccuracyOptions options = {});

  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const at::Tensor& weights = {}) override;
  std::unique_ptr<Metric> make_empty() const override;
  Better better() const override {
    return Better::kHigher;
  }

 private:
  AccuracyOptions options_;
};

/// How many places count for a TopKAccuracy, and its name in logs.
struct TopKAccuracyOptions {
  int64_t k = 5;
  /// Empty: "top_5_accuracy", with k.
  std::string name = "";
};

/// How often the label is among the k classes with the largest scores; of equal
/// scores, those of later classes rank first.
/// Shapes:  predictions [n, classes], any scores; labels [n] or [n, 1] in
///          [0, classes).
/// Source:  scikit-learn's top_k_accuracy_score, whose rule for ties it is.
class TopKAccuracy : public MeanMetric {
 public:
  /// Errors:  c10::ValueError for k < 1.
  explicit TopKAccuracy(TopKAccuracyOptions options = {});

  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const at::Tensor& weights = {}) override;
  std::unique_ptr<Metric> make_empty() const override;
  Better better() const override {
    return Better::kHigher;
  }

 private:
  TopKAccuracyOptions options_;
};

/// How many retrieved ids count for a RecallAtK, and its name in logs.
struct RecallAtKOptions {
  int64_t k = 10;
  /// Empty: "recall_at_10", with k.
  std::string name = "";
};

/// How often the label, the one id that is right for an example, is among the first k
/// ids that were retrieved for it.
///
///   RecallAtK recall({.k = 10});
///   recall.update(index->search(queries, 10).ids, next_movies);
///
/// Shapes:  predictions [n, retrieved] int32 or int64, best first, as TopK::ids has them;
///          -1 stands for none. Labels [n] or [n, 1], ids >= 0 of these dtypes.
/// Source:  tfrs.metrics.FactorizedTopK, for one k.
class RecallAtK : public MeanMetric {
 public:
  /// Errors:  c10::ValueError for k < 1.
  explicit RecallAtK(RecallAtKOptions options = {});

  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const at::Tensor& weights = {}) override;
  std::unique_ptr<Metric> make_empty() const override;
  Better better() const override {
    return Better::kHigher;
  }

 private:
  RecallAtKOptions options_;
};

/// The mean of the predictions; labels have no part, and may be undefined. Of a
/// calibrated model it is the mean label.
/// Shapes:  predictions [n] or [n, 1].
class Mean : public MeanMetric {
 public:
  explicit Mean(std::string name = "mean") : MeanMetric(std::move(name)) {}

  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels = {},
      const at::Tensor& weights = {}) override;
  std::unique_ptr<Metric> make_empty() const override;
};

}  // namespace tessera::training
