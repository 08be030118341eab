// SPDX-License-Identifier: Apache-2.0
#pragma once

// Losses of lists of scores, with a label for each item. sampled_losses.h has losses of
// one positive item and sampled negatives.

#include <tessera/models/retrieval.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// The lists of a batch of queries.
struct RankingLists {
  at::Tensor scores = {};  // [queries, list] floats
  /// Grades; an item with a higher label should have a higher score. Items with a
  /// negative label are left out, as if the list were shorter.
  at::Tensor labels = {};  // [queries, list]
  /// Items with false are left out, too.
  at::Tensor mask = {};  // [queries, list] bool
  /// Pairwise losses also take [queries, list].
  at::Tensor weights = {};  // [queries] floats >= 0
};

/// The options of the losses of RankingLists.
struct RankingLossOptions {
  /// Scores are divided by this number.
  double temperature = 1.0;
  /// kMean divides the sum by the number of items, or of lists if the loss has one value
  /// per list. Items that are left out count, too, and weights do not change the divisor.
  LossReduction reduction = LossReduction::kMean;

  bool operator==(const RankingLossOptions&) const = default;
};

// What the following losses have in common:
//
// The result is a scalar, which is 0 for no lists, for empty ones, and for lists in which
// no item is left. The scores of items that are left out may be anything, also NaN, and
// their gradient is 0. Another score that is NaN makes the loss NaN, as in LibTorch's
// losses.
//
// Errors:  c10::ValueError or TypeError for shapes and dtypes, for labels that are not
//          finite, for weights that are negative or not finite, and for a temperature
//          that is not positive and finite.

// snippet: tests/docs/reference_metrics_test.cpp pairwise_hinge_loss
/// For each pair of items whose labels differ, how far the item with the higher label is
/// from a score that is 1 higher. 0 for lists of equal labels.
///
///   const auto loss = pairwise_hinge_loss({.scores = scores, .labels = grades});
///   loss.backward();
///
///   loss of item i = sum over items j with y_j < y_i of max(0, 1 - (s_i - s_j))
///
/// Memory:  [queries, list, list], also for the other pairwise losses.
/// Source:  keras_rs.losses.PairwiseHingeLoss; Joachims 2002,
///          doi:10.1145/775047.775067.
at::Tensor pairwise_hinge_loss(
    const RankingLists& lists,
    const RankingLossOptions& options = {});

/// For each pair of items whose labels differ, the log loss of their order (RankNet).
///
///   loss of item i = sum over items j with y_j < y_i of log(1 + exp(-(s_i - s_j)))
///
/// Source:  keras_rs.losses.PairwiseLogisticLoss; Burges et al. 2005,
///          doi:10.1145/1102351.1102363.
at::Tensor pairwise_logistic_loss(
    const RankingLists& lists,
    const RankingLossOptions& options = {});

/// A smooth count of the pairs in the wrong order.
///
///   loss of item i = sum over items j with y_j < y_i of 1 - sigmoid(s_i - s_j)
///
/// Source:  keras_rs.losses.PairwiseSoftZeroOneLoss.
at::Tensor pairwise_soft_zero_one_loss(
    const RankingLists& lists,
    const RankingLossOptions& options = {});

/// How far the differences of scores are from those of labels, over all pairs.
///
///   loss of item i = sum over other items j of ((y_i - y_j) - (s_i - s_j))^2
///
/// Errors:  c10::ValueError for a temperature other than 1, which Keras-RS ignores.
/// Source:  keras_rs.losses.PairwiseMeanSquaredError.
at::Tensor pairwise_mean_squared_loss(
    const RankingLists& lists,
    const RankingLossOptions& options = {});

// snippet: tests/docs/reference_metrics_test.cpp list_softmax_loss
/// The softmax cross entropy over a list (ListNet's top-1 loss, but without normalized
/// labels). 0 for lists whose labels are all 0.
///
///   const auto loss = list_softmax_loss(
///       {.scores = scores, .labels = clicks, .mask = is_item},
///       {.temperature = 0.1});
///
///   loss of a list = -sum over items i of y_i * log(exp(s_i) / sum_j exp(s_j))
///
/// Source:  tfr.keras.losses.SoftmaxLoss of TF-Ranking; Cao et al. 2007,
///          doi:10.1145/1273496.1273513.
at::Tensor list_softmax_loss(
    const RankingLists& lists,
    const RankingLossOptions& options = {});

/// The negative log likelihood of the order of the labels (ListMLE), where items are drawn
/// one after another with probabilities softmax(scores of the items that are left). Items
/// with equal labels count in the order of the list.
///
///   loss of a list = -sum over i of log(exp(s_i) / sum over j >= i of exp(s_j)),
///   with the items sorted by label, highest first
///
/// Source:  keras_rs.losses.ListMLELoss, which adds 1e-10 to the sum of exponentials; Xia
///          et al. 2008, doi:10.1145/1390156.1390306.
at::Tensor list_mle_loss(
    const RankingLists& lists,
    const RankingLossOptions& options = {});

}  // namespace tessera
