// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/ranking_losses.h>

#include "packages/models/src/loss_inputs.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logcumsumexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>

#include <limits>
#include <string>
#include <tuple>

namespace tessera {

namespace {

enum class WeightsPer { kList, kListOrItem };

// Checked lists. Items that are left out have score 0 without gradient, and label 0.
struct CheckedLists {
  at::Tensor scores;  // [queries, list], divided by the temperature
  at::Tensor labels;  // [queries, list], of the scores' dtype
  at::Tensor is_item;  // [queries, list] bool
  at::Tensor weights;  // [queries, 1] or [queries, list]; undefined: 1
};

CheckedLists check_lists(
    const RankingLists& lists,
    const RankingLossOptions& options,
    const std::string& where,
    WeightsPer weights_per) {
  check_temperature(options.temperature, where);
  check_loss_scores(lists.scores, "scores", 2, "[queries, list]", where);
  check_loss_values(
      lists.labels, "labels", lists.scores, lists.scores.sizes(), where);
  TESSERA_CHECK_TYPE(
      !lists.labels.is_complex(),
      "{} labels must be real numbers, but got {}. Convert the labels.",
      where,
      describe(lists.labels));
  const at::Tensor labels =
      lists.labels.detach().to(lists.scores.scalar_type());
  TESSERA_CHECK_VALUE(
      labels.isfinite().all().item<bool>(),
      "{} labels must be finite, but some are not. Give items without a label the label -1.",
      where);
  at::Tensor is_item = labels >= 0.0;
  if (lists.mask.defined()) {
    check_loss_values(
        lists.mask, "mask", lists.scores, lists.scores.sizes(), where);
    TESSERA_CHECK_TYPE(
        lists.mask.scalar_type() == at::kBool,
        "{} mask must be bool, but got {}. Pass mask != 0.",
        where,
        describe(lists.mask));
    is_item = is_item.logical_and(lists.mask);
  }
  at::Tensor weights = lists.weights;
  if (weights.defined()) {
    const int64_t queries = lists.scores.size(0);
    const bool is_per_item =
        weights_per == WeightsPer::kListOrItem && weights.dim() == 2;
    check_loss_weights(
        weights,
        "weights",
        lists.scores,
        is_per_item ? lists.scores.sizes() : at::IntArrayRef{queries},
        where);
    weights = is_per_item ? weights : weights.unsqueeze(1);
  }
  const at::Tensor left_out = is_item.logical_not();
  return {
      .scores = lists.scores.masked_fill(left_out, 0.0) / options.temperature,
      .labels = labels.masked_fill(left_out, 0.0),
      .is_item = is_item,
      .weights = weights};
}

// Returns x_i - x_j for all pairs, [queries, list, list].
at::Tensor differences(const at::Tensor& values) {
  return values.unsqueeze(2) - values.unsqueeze(1);
}

// Whether both items of a pair are in the list, [queries, list, list].
at::Tensor are_items(const CheckedLists& lists) {
  return lists.is_item.unsqueeze(2).logical_and(lists.is_item.unsqueeze(1));
}

// Adds up the losses of the pairs of each item, and reduces the sums.
at::Tensor reduce_pairs(
    const at::Tensor& losses,
    const at::Tensor& is_pair,
    const CheckedLists& lists,
    LossReduction reduction) {
  // A product with 0 would keep a NaN of a pair that does not count.
  const at::Tensor of_items =
      losses.masked_fill(is_pair.logical_not(), 0.0).sum(2);
  return reduce_losses(of_items, lists.weights, reduction);
}

// `loss_of` takes the differences of scores.
template <class LossOf>
at::Tensor pairwise_loss(
    const RankingLists& lists,
    const RankingLossOptions& options,
    const std::string& where,
    LossOf loss_of) {
  const CheckedLists checked =
      check_lists(lists, options, where, WeightsPer::kListOrItem);
  const at::Tensor is_pair =
      (differences(checked.labels) > 0.0).logical_and(are_items(checked));
  return reduce_pairs(
      loss_of(differences(checked.scores)),
      is_pair,
      checked,
      options.reduction);
}

}  // namespace

at::Tensor pairwise_hinge_loss(
    const RankingLists& lists,
    const RankingLossOptions& options) {
  return pairwise_loss(
      lists, options, "[pairwise_hinge_loss]", [](const at::Tensor& margin) {
        return at::relu(1.0 - margin);
      });
}

at::Tensor pairwise_logistic_loss(
    const RankingLists& lists,
    const RankingLossOptions& options) {
  return pairwise_loss(
      lists, options, "[pairwise_logistic_loss]", [](const at::Tensor& margin) {
        return stable_softplus(-margin);
      });
}

at::Tensor pairwise_soft_zero_one_loss(
    const RankingLists& lists,
    const RankingLossOptions& options) {
  return pairwise_loss(
      lists,
      options,
      "[pairwise_soft_zero_one_loss]",
      [](const at::Tensor& margin) { return at::sigmoid(-margin); });
}

at::Tensor pairwise_mean_squared_loss(
    const RankingLists& lists,
    const RankingLossOptions& options) {
  const std::string where = "[pairwise_mean_squared_loss]";
  TESSERA_CHECK_VALUE(
      options.temperature == 1.0,
      "{} temperature must be 1, but got {}. Scale the scores instead, because their differences are compared with those of labels.",
      where,
      options.temperature);
  const CheckedLists checked =
      check_lists(lists, options, where, WeightsPer::kListOrItem);
  const at::Tensor errors =
      differences(checked.labels) - differences(checked.scores);
  // A pair of an item with itself has no error, so it need not be left out.
  return reduce_pairs(
      errors * errors, are_items(checked), checked, options.reduction);
}

at::Tensor list_softmax_loss(
    const RankingLists& lists,
    const RankingLossOptions& options) {
  const CheckedLists checked =
      check_lists(lists, options, "[list_softmax_loss]", WeightsPer::kList);
  // A list without items keeps score 0, so that its sum is not empty.
  const at::Tensor is_empty =
      checked.is_item.any(/*dim=*/1, /*keepdim=*/true).logical_not();
  const at::Tensor scores = checked.scores.masked_fill(
      checked.is_item.logical_or(is_empty).logical_not(),
      -std::numeric_limits<double>::infinity());
  if (scores.size(1) == 0) {
    return reduce_losses(
        checked.scores.sum(1, true), checked.weights, options.reduction);
  }
  const at::Tensor sums = at::logsumexp(scores, 1, /*keepdim=*/true);
  const at::Tensor losses = checked.labels * (sums - checked.scores);
  return reduce_losses(losses.sum(1, true), checked.weights, options.reduction);
}

at::Tensor list_mle_loss(
    const RankingLists& lists,
    const RankingLossOptions& options) {
  const CheckedLists checked =
      check_lists(lists, options, "[list_mle_loss]", WeightsPer::kList);
  if (checked.scores.size(1) == 0) {
    return reduce_losses(
        checked.scores.sum(1, true), checked.weights, options.reduction);
  }
  // The lowest label comes first, so that the cumulative sum at an item covers the items
  // that rank below it. Items that are left out come last, where no other sum has them.
  const at::Tensor keys = checked.labels.masked_fill(
      checked.is_item.logical_not(), std::numeric_limits<double>::infinity());
  const at::Tensor order =
      std::get<1>(keys.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true))
          .flip(1);
  const at::Tensor is_item = checked.is_item.gather(1, order);
  const at::Tensor scores = checked.scores.gather(1, order);
  const at::Tensor sums = at::logcumsumexp(scores, 1);
  const at::Tensor losses =
      (sums - scores).masked_fill(is_item.logical_not(), 0.0);
  return reduce_losses(losses.sum(1, true), checked.weights, options.reduction);
}

}  // namespace tessera
