// SPDX-License-Identifier: Apache-2.0
#pragma once

// Losses of one positive item per example and sampled negative items. Retrieval in
// retrieval.h takes the other examples of the batch as negatives.

#include <tessera/models/ranking_losses.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// The scores of a batch. Tensors that are not given stay undefined.
struct SampledScores {
  at::Tensor positive = {};  // [batch] floats
  at::Tensor negative = {};  // [batch, negatives] floats
  /// If positive_ids and negative_ids are given, negatives that have the id of the
  /// example's positive item are left out (accidental hits).
  at::Tensor positive_ids = {};  // [batch] int32 or int64
  at::Tensor negative_ids = {};  // [negatives] or [batch, negatives]
  /// How often an item is expected in a sample, in (0, infinity). Only
  /// sampled_softmax_loss() takes probabilities.
  at::Tensor positive_probability = {};  // [batch] floats
  at::Tensor negative_probability = {};  // [negatives] or [batch, negatives]
  at::Tensor weights = {};  // [batch] floats >= 0
};

/// The options of bpr_loss() and sampled_softmax_loss(). kMean divides the sum by the batch
/// size, also if the examples have weights.
using SampledLossOptions = RankingLossOptions;

/// The options of cosine_contrastive_loss().
struct CosineContrastiveLossOptions {
  /// A cosine in [-1, 1]. Negatives whose cosine is at most this have no loss.
  double margin = 0.8;
  /// The weight of the mean over the negatives, >= 0.
  double negative_weight = 150.0;
  LossReduction reduction = LossReduction::kMean;

  bool operator==(const CosineContrastiveLossOptions&) const = default;
};

/// The options of warp_loss().
struct WarpLossOptions {
  /// The number of items from which the negatives are drawn, >= 2.
  int64_t num_items = 0;
  /// A number >= 0. A negative violates the order unless its score is at least this much
  /// below that of the positive item.
  double margin = 1.0;
  LossReduction reduction = LossReduction::kMean;

  bool operator==(const WarpLossOptions&) const = default;
};

// What the following losses have in common:
//
// The result is a scalar, which is 0 without examples. An example without negatives, or
// whose negatives are all accidental hits, has the loss 0. A score that is NaN makes the
// loss NaN, as in LibTorch's losses.
//
// Errors:  c10::ValueError or TypeError for shapes and dtypes, for weights that are
//          negative or not finite, if only one of positive_ids and negative_ids is set, and
//          for options out of range.

// snippet: tests/docs/reference_metrics_test.cpp bpr_loss
/// Bayesian personalized ranking: the log loss of the order of the positive item and each
/// negative one.
///
///   const auto loss = bpr_loss(
///       {.positive = (users * movies).sum(1),
///        .negative = torch::matmul(users, sampled.t())});
///   loss.backward();
///
///   loss of an example = mean over its negatives of log(1 + exp(-(positive - negative)))
///
/// Source:  Rendle et al. 2009, arXiv:1205.2618.
at::Tensor bpr_loss(
    const SampledScores& scores,
    const SampledLossOptions& options = {});

// snippet: tests/docs/reference_metrics_test.cpp warp_loss
/// Weighted approximate-rank pairwise loss (WARP), which cares most about the top of the
/// list. The negatives are tried in their order. The number of tries until one violates
/// the order estimates the rank of the positive item.
///
///   const auto loss = warp_loss(
///       {.positive = positive_scores, .negative = negative_scores},
///       {.num_items = 1682});
///
///   n = the number of the first negative with margin + negative > positive, from 1
///   rank = max(1, floor((num_items - 1) / n))
///   loss of an example = (1 + 1/2 + ... + 1/rank) * (margin + negative n - positive)
///
/// 0 if no negative violates the order. The rank has no gradient. Accidental hits do not
/// count as tries.
///
/// Source:  Weston et al. 2011, IJCAI, "WSABIE: Scaling Up To Large Vocabulary Image
///          Annotation", algorithm 1. LightFM uses log(rank) in place of the sum.
at::Tensor warp_loss(
    const SampledScores& scores,
    const WarpLossOptions& options);

// snippet: tests/docs/reference_metrics_test.cpp sampled_softmax_loss
/// The softmax cross entropy over the positive item and the sampled negatives, with a
/// correction for how often each item is sampled (log Q).
///
///   const auto loss = sampled_softmax_loss(
///       {.positive = positive_scores,
///        .negative = negative_scores,
///        .positive_ids = movies,
///        .negative_ids = sampled,
///        .positive_probability = share.index_select(0, movies),
///        .negative_probability = share.index_select(0, sampled)});
///
///   s = score / temperature - log(probability of the item)
///   loss of an example = log(exp(s positive) + sum over negatives of exp(s)) - s positive
///
/// Without probabilities, the scores are not corrected, which is right for uniform
/// samples. The gradient of this loss approaches that of the softmax over all items as
/// the number of negatives grows.
///
/// Source:  tf.nn.sampled_softmax_loss; Jean et al. 2015, arXiv:1412.2007.
at::Tensor sampled_softmax_loss(
    const SampledScores& scores,
    const SampledLossOptions& options = {});

// snippet: tests/docs/reference_metrics_test.cpp cosine_contrastive_loss
/// The cosine contrastive loss (CCL), for many negatives that are mostly easy.
///
///   const auto loss = cosine_contrastive_loss(
///       {.positive = positive_scores, .negative = negative_scores},
///       {.margin = 0.4, .negative_weight = 150.0});
///
///   loss of an example = 1 - positive
///       + negative_weight * mean over its negatives of max(0, negative - margin)
///
/// The scores are cosines: dot products of vectors that have the length 1, for example
/// after torch::nn::functional::normalize(). Accidental hits do not count in the mean. An
/// example without negatives has the loss 1 - positive.
///
/// Errors:  also c10::ValueError for scores outside of [-1.01, 1.01], which are no cosines.
/// Source:  Mao et al. 2021, arXiv:2109.12613 (SimpleX).
at::Tensor cosine_contrastive_loss(
    const SampledScores& scores,
    const CosineContrastiveLossOptions& options = {});

}  // namespace tessera
