// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/sampled_losses.h>

#include "packages/models/src/loss_inputs.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/digamma.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace tessera {

namespace {

constexpr double kEulerGamma = 0.57721566490153286061;

// Checks ids or probabilities, which have one row for the batch or one for each example.
at::Tensor checked_rows(
    const at::Tensor& values,
    const char* name,
    const at::Tensor& negative,
    const std::string& where) {
  const bool is_shared = values.dim() == 1;
  check_loss_values(
      values,
      name,
      negative,
      is_shared ? negative.sizes().slice(1) : negative.sizes(),
      where);
  return is_shared ? values.unsqueeze(0) : values;
}

void check_sampled_scores(
    const SampledScores& scores,
    const std::string& where) {
  check_loss_scores(scores.positive, "positive", 1, "[batch]", where);
  check_loss_scores(
      scores.negative, "negative", 2, "[batch, negatives]", where);
  TESSERA_CHECK_VALUE(
      scores.negative.size(0) == scores.positive.size(0) &&
          scores.negative.scalar_type() == scores.positive.scalar_type() &&
          scores.negative.device() == scores.positive.device(),
      "{} positive and negative must have the same batch size, dtype and device, but got {} and {}. Give each example one row of negatives.",
      where,
      describe(scores.positive),
      describe(scores.negative));
  if (scores.weights.defined()) {
    check_loss_weights(
        scores.weights,
        "weights",
        scores.positive,
        scores.positive.sizes(),
        where);
  }
}

// Returns which negatives are accidental hits, [batch, negatives] bool. Undefined: none.
at::Tensor accidental_hits(
    const SampledScores& scores,
    const std::string& where) {
  const at::Tensor& positive = scores.positive_ids;
  const at::Tensor& negative = scores.negative_ids;
  TESSERA_CHECK_VALUE(
      positive.defined() == negative.defined(),
      "{} expected the ids of positive and negative items, or of neither, but got only those of {}. Pass both to leave out accidental hits.",
      where,
      positive.defined() ? "positive items" : "negative items");
  if (!positive.defined()) {
    return {};
  }
  for (const at::Tensor* ids : {&positive, &negative}) {
    TESSERA_CHECK_TYPE(
        ids->scalar_type() == at::kLong || ids->scalar_type() == at::kInt,
        "{} ids must be int32 or int64, but got {}. Convert them with to(torch::kLong).",
        where,
        describe(*ids));
  }
  check_loss_values(
      positive,
      "positive_ids",
      scores.positive,
      scores.positive.sizes(),
      where);
  return checked_rows(negative, "negative_ids", scores.negative, where)
      .eq(positive.unsqueeze(1));
}

// Checks the scores of a loss that takes no probabilities, and returns its accidental hits.
at::Tensor checked_hits(const SampledScores& scores, const std::string& where) {
  check_sampled_scores(scores, where);
  TESSERA_CHECK_VALUE(
      !scores.positive_probability.defined() &&
          !scores.negative_probability.defined(),
      "{} takes no probabilities. Leave them out, or use sampled_softmax_loss().",
      where);
  return accidental_hits(scores, where);
}

// Subtracts log(probability) from scores.
at::Tensor corrected(
    const at::Tensor& scores,
    const at::Tensor& probability,
    const char* name,
    const std::string& where) {
  check_loss_floats(probability, name, where);
  TESSERA_CHECK_VALUE(
      !probability.requires_grad(),
      "{} {} must not require a gradient. Detach it.",
      where,
      name);
  TESSERA_CHECK_VALUE(
      at::isfinite(probability)
          .logical_and(probability > 0.0)
          .all()
          .item<bool>(),
      "{} {} must be > 0 and finite, but some are not. Use a small probability for items that were never sampled.",
      where,
      name);
  // The logarithm is in float64, because a small probability may be denormal in float32.
  return scores - probability.to(at::kDouble).log().to(scores.scalar_type());
}

// Returns the mean of each example over its negatives without accidental hits, [batch].
at::Tensor mean_over_negatives(
    const at::Tensor& losses,
    const at::Tensor& hits) {
  if (!hits.defined()) {
    return losses.sum(1) / std::max(1.0, static_cast<double>(losses.size(1)));
  }
  return losses.masked_fill(hits, 0.0).sum(1) /
      hits.logical_not().sum(1).clamp_min(1);
}

}  // namespace

at::Tensor bpr_loss(
    const SampledScores& scores,
    const SampledLossOptions& options) {
  const std::string where = "[bpr_loss]";
  check_temperature(options.temperature, where);
  const at::Tensor hits = checked_hits(scores, where);
  // If only the losses were masked, a score that is NaN would get the gradient NaN.
  const at::Tensor negative =
      hits.defined() ? scores.negative.masked_fill(hits, 0.0) : scores.negative;
  const at::Tensor margin =
      (scores.positive.unsqueeze(1) - negative) / options.temperature;
  return reduce_losses(
      mean_over_negatives(stable_softplus(-margin), hits),
      scores.weights,
      options.reduction);
}

at::Tensor cosine_contrastive_loss(
    const SampledScores& scores,
    const CosineContrastiveLossOptions& options) {
  const std::string where = "[cosine_contrastive_loss]";
  TESSERA_CHECK_VALUE(
      options.margin >= -1.0 && options.margin <= 1.0,
      "{} margin must be in [-1, 1], but got {}. Use a cosine, such as 0.4.",
      where,
      options.margin);
  TESSERA_CHECK_VALUE(
      std::isfinite(options.negative_weight) && options.negative_weight >= 0.0,
      "{} negative_weight must be finite and >= 0, but got {}. Use about 100 to 1000 for many negatives.",
      where,
      options.negative_weight);
  const at::Tensor hits = checked_hits(scores, where);
  const at::Tensor negative = hits.defined()
      ? scores.negative.masked_fill(hits, -1.0)
      : scores.negative;
  for (const at::Tensor& cosines : {scores.positive, negative}) {
    constexpr double kLargest = 1.01;  // cosines in bfloat16 are not exact
    // A NaN passes this check, and makes the loss NaN.
    TESSERA_CHECK_VALUE(
        !(cosines.abs() > kLargest).any().item<bool>(),
        "{} expected cosines, which are in [-1, 1], but a score has the absolute value {}. Normalize the vectors before their products.",
        where,
        cosines.abs().max().item<double>());
  }
  const at::Tensor too_near =
      mean_over_negatives((negative - options.margin).clamp_min(0.0), hits);
  return reduce_losses(
      1.0 - scores.positive + options.negative_weight * too_near,
      scores.weights,
      options.reduction);
}

at::Tensor warp_loss(
    const SampledScores& scores,
    const WarpLossOptions& options) {
  const std::string where = "[warp_loss]";
  TESSERA_CHECK_VALUE(
      options.num_items >= 2,
      "{} num_items must be >= 2, but got {}. Set it to the number of items that may be drawn.",
      where,
      options.num_items);
  TESSERA_CHECK_VALUE(
      std::isfinite(options.margin) && options.margin >= 0.0,
      "{} margin must be finite and >= 0, but got {}. Use 1, as the paper does.",
      where,
      options.margin);
  const at::Tensor hits = checked_hits(scores, where);
  if (scores.negative.size(1) == 0) {
    return reduce_losses(
        scores.positive * 0.0 + scores.negative.sum(1),
        scores.weights,
        options.reduction);
  }
  const at::Tensor distance =
      options.margin + scores.negative - scores.positive.unsqueeze(1);
  // A NaN counts as a violation, so that the loss is NaN, too.
  at::Tensor is_violation = (distance <= 0.0).logical_not();
  at::Tensor tries =
      at::arange(1, distance.size(1) + 1, distance.options().dtype(at::kLong));
  tries = tries.unsqueeze(0).expand_as(distance);
  if (hits.defined()) {
    is_violation = is_violation.logical_and(hits.logical_not());
    tries = hits.logical_not().cumsum(1);
  }
  // max() returns the first of the largest values: the first violation, if there is one.
  const auto [has_violation, first] =
      is_violation.to(at::kByte).max(1, /*keepdim=*/true);
  const at::Tensor tried = tries.gather(1, first).clamp_min(1);
  const at::Tensor rank =
      at::floor_divide((at::zeros_like(tried) + options.num_items - 1), tried)
          .clamp_min(1);
  const at::Tensor rank_loss =
      at::digamma(rank.to(at::kDouble) + 1.0) + kEulerGamma;
  const at::Tensor losses =
      (rank_loss.to(distance.scalar_type()) * distance.gather(1, first))
          .masked_fill(has_violation.eq(0), 0.0);
  return reduce_losses(losses.squeeze(1), scores.weights, options.reduction);
}

at::Tensor sampled_softmax_loss(
    const SampledScores& scores,
    const SampledLossOptions& options) {
  const std::string where = "[sampled_softmax_loss]";
  check_temperature(options.temperature, where);
  check_sampled_scores(scores, where);
  const at::Tensor hits = accidental_hits(scores, where);
  const at::Tensor& of_positive = scores.positive_probability;
  const at::Tensor& of_negative = scores.negative_probability;
  TESSERA_CHECK_VALUE(
      of_positive.defined() == of_negative.defined(),
      "{} expected the probabilities of positive and negative items, or of neither, but got only one. Pass both to correct the scores.",
      where);
  at::Tensor positive = scores.positive / options.temperature;
  at::Tensor negative = scores.negative / options.temperature;
  if (of_positive.defined()) {
    check_loss_values(
        of_positive,
        "positive_probability",
        scores.positive,
        scores.positive.sizes(),
        where);
    positive = corrected(positive, of_positive, "positive_probability", where);
    negative = corrected(
        negative,
        checked_rows(
            of_negative, "negative_probability", scores.negative, where),
        "negative_probability",
        where);
  }
  if (hits.defined()) {
    // exp(-inf) and its gradient are 0.
    negative =
        negative.masked_fill(hits, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor sums =
      at::logsumexp(at::cat({positive.unsqueeze(1), negative}, 1), 1);
  return reduce_losses(sums - positive, scores.weights, options.reduction);
}

}  // namespace tessera
