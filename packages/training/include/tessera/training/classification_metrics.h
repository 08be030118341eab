// SPDX-License-Identifier: Apache-2.0
#pragma once

// Metrics of click models, in addition to AUC and LogLoss in metrics.h.

#include <tessera/training/metrics.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::training {

// snippet: tests/docs/reference_metrics_test.cpp AveragePrecision
/// The area under the precision-recall curve (AUPRC), which says more than the AUC if
/// positive examples are rare.
///
///   AveragePrecision average_precision;
///   average_precision.update(scores, clicks);
///   const double area = average_precision.result();
///
///   sum over thresholds t, from the highest score down, of
///       (recall at t - recall at the threshold before) * precision at t
///
/// Examples with equal scores share a threshold. The result is 1 if all examples are
/// positive, and NaN if none is.
///
/// Shapes:  predictions [n] or [n, 1], any scores; as many labels, each 0 or 1.
/// Source:  scikit-learn's average_precision_score, which gives 0 without positives.
class AveragePrecision : public detail::TwoClassMetric {
 public:
  explicit AveragePrecision(std::string name = "average_precision");
};

// snippet: tests/docs/reference_metrics_test.cpp GroupedAUC
/// The AUC within each group, such as a user, weighted by the group's examples
/// (GAUC). Scores of different groups are not compared.
///
///   GroupedAUC gauc;
///   gauc.update_batch({.predictions = scores, .labels = clicks, .groups = users});
///   const double area = gauc.result();
///
///   sum over groups of impressions(g) * AUC(g) / sum over groups of impressions(g)
///
/// impressions(g) is the weight of all examples of the group. A group whose examples all
/// have the same class has no AUC and is left out. NaN if no group has both classes. In
/// fit(), the step returns the groups as StepResult::groups.
///
/// It is exact, so it stores every example, with 32 bytes. result() sorts them.
///
/// Shapes:  predictions [n] or [n, 1], any scores; as many labels, each 0 or 1; groups
///          [n] or [n, 1] int32 or int64.
/// Errors:  c10::ValueError for a batch without groups.
/// Source:  Zhou et al. 2018, section 5.3, doi:10.1145/3219819.3219823.
class GroupedAUC : public Metric {
 public:
  explicit GroupedAUC(std::string name = "gauc") : Metric(std::move(name)) {}

  void update_batch(const StepResult& batch) override;
  double result() const override;
  void reset() override {
    examples_.clear();
  }
  std::unique_ptr<Metric> make_empty() const override {
    return std::make_unique<GroupedAUC>(name());
  }
  Better better() const override {
    return Better::kHigher;
  }
  bool is_cheap() const override {
    return false;
  }
  at::Tensor state() const override;
  void load_state(const at::Tensor& state) override;
  void merge(const at::Tensor& state) override;

 private:
  struct Example {
    int64_t group = 0;
    double score = 0.0;
    double weight = 1.0;
    double label = 0.0;

    auto operator<=>(const Example&) const = default;
  };

  // Mutable because result() sorts the examples.
  mutable std::vector<Example> examples_;
};

// snippet: tests/docs/reference_metrics_test.cpp NormalizedEntropy
/// The log loss, divided by the log loss of always predicting the share of positive
/// examples. If the result is below 1, the model knows more than this share. The division
/// makes data with different click rates comparable.
///
///   NormalizedEntropy entropy({.scores = ScoreKind::kLogits});
///   entropy.update(logits, clicks);
///   const double share = entropy.result();
///
///   mean of -log p(label) / -(c log c + (1 - c) log(1 - c)), c = mean of the labels
///
/// NaN if all examples have the same class, because the divisor is 0 then.
///
/// Shapes:  predictions [n] or [n, 1]; as many labels, each 0 or 1.
/// Source:  He et al. 2014, section 3, doi:10.1145/2648584.2648589.
class NormalizedEntropy : public detail::RuleMetric {
 public:
  /// The default name is "normalized_entropy".
  explicit NormalizedEntropy(ScoreMetricOptions options = {});
};

}  // namespace tessera::training
