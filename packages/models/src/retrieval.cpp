// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/retrieval.h>

#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()

#include "packages/models/src/loss_inputs.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>

#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr const char* kWhere = "[Retrieval]";
constexpr const char* kReductions[] = {"sum", "mean"};

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

void check_vectors(const at::Tensor& tensor, const char* name) {
  TESSERA_CHECK_VALUE(
      tensor.defined() && tensor.dim() == 2 && tensor.numel() > 0,
      "[Retrieval] {} must be a matrix of one vector or more, but got {}. Give it the shape [batch, dim].",
      name,
      describe(tensor));
  TESSERA_CHECK_TYPE(
      tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble,
      "[Retrieval] {} must be float32 or float64, but got {}. Convert it with to(torch::kFloat).",
      name,
      tensor.scalar_type());
  TESSERA_CHECK_VALUE(
      all_finite(tensor),
      "[Retrieval] {} must be finite, but has NaN or infinity. Lower the learning rate, or look for a division by 0 in the tower.",
      name);
}

void check_pair(const at::Tensor& query, const at::Tensor& candidate) {
  check_vectors(query, "query");
  check_vectors(candidate, "candidate");
  TESSERA_CHECK_VALUE(
      query.size(1) == candidate.size(1),
      "[Retrieval] query and candidate must have the same dim, but got {} and {}. Let both towers end with the same number of columns.",
      query.size(1),
      candidate.size(1));
  TESSERA_CHECK_VALUE(
      candidate.size(0) >= query.size(0),
      "[Retrieval] expected at least one candidate for each of the {} queries, but got {}. Pass the candidate of query i in row i, and further negatives after these rows.",
      query.size(0),
      candidate.size(0));
  TESSERA_CHECK_TYPE(
      query.scalar_type() == candidate.scalar_type(),
      "[Retrieval] query and candidate must have the same dtype, but got {} and {}. Convert one of them with to().",
      query.scalar_type(),
      candidate.scalar_type());
  TESSERA_CHECK_VALUE(
      query.device() == candidate.device(),
      "[Retrieval] query and candidate must be on the same device, but got {} and {}. Move one of them with to().",
      query.device(),
      candidate.device());
}

void check_ids(
    const RetrievalOptions& options,
    const at::Tensor& ids,
    const at::Tensor& candidate) {
  if (!ids.defined()) {
    TESSERA_CHECK_VALUE(
        !options.remove_accidental_hits,
        "[Retrieval] remove_accidental_hits needs candidate_ids, but got none. Pass the id of each candidate.");
    return;
  }
  check_integers(ids, "candidate_ids", "Retrieval");
  check_loss_values(
      ids, "candidate_ids", candidate, {candidate.size(0)}, kWhere);
}

void check_probability(
    const at::Tensor& probability,
    const at::Tensor& candidate) {
  constexpr const char* kName = "candidate_sampling_probability";
  check_loss_floats(probability, kName, kWhere);
  check_loss_values(probability, kName, candidate, {candidate.size(0)}, kWhere);
  TESSERA_CHECK_VALUE(
      !probability.requires_grad(),
      "[Retrieval] candidate_sampling_probability must not require a gradient. Detach it.");
  // These comparisons are also false for NaN.
  const at::Tensor is_in_range =
      (probability > 0.0).logical_and(probability <= 1);
  TESSERA_CHECK_VALUE(
      is_in_range.all().item<bool>(),
      "[Retrieval] candidate_sampling_probability must be in (0, 1], but got {}. Use a small probability for candidates that were never seen.",
      probability.masked_select(is_in_range.logical_not())[0].item<double>());
}

}  // namespace

const char* to_string(LossReduction reduction) {
  return kReductions[static_cast<size_t>(reduction)];
}

LossReduction loss_reduction_from_string(const std::string& name) {
  return value_named<LossReduction::kMean>(name, kReductions, "reduction");
}

RetrievalImpl::RetrievalImpl(RetrievalOptions options)
    : LayerImpl(std::move(options)) {
  const RetrievalOptions& checked = this->options();
  check_temperature(checked.temperature, kWhere);
  TESSERA_CHECK_VALUE(
      !checked.num_hard_negatives || *checked.num_hard_negatives >= 1,
      "[Retrieval] num_hard_negatives must be >= 1, but got {}. Leave it unset for all negatives.",
      checked.num_hard_negatives.value_or(0));
}

Nest<PartialShape> RetrievalImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  const std::vector<PartialShape> shapes = input_shapes.flatten();
  TESSERA_CHECK_VALUE(
      shapes.size() == 2,
      "[Retrieval] expected two shapes, those of query and candidate, but got {}. Pass both.",
      shapes.size());
  const auto& [query, candidate] = std::tie(shapes[0], shapes[1]);
  TESSERA_CHECK_VALUE(
      query.size() == 2 && candidate.size() == 2 &&
          (!query[1] || !candidate[1] || *query[1] == *candidate[1]),
      "[Retrieval] expected a query [batch, dim] and a candidate [candidates, dim], but got {} and {}. Both must have the same dim.",
      to_string(query),
      to_string(candidate));
  return PartialShape{};
}

at::Tensor RetrievalImpl::forward(
    const at::Tensor& query,
    const at::Tensor& candidate,
    const RetrievalBatch& batch) {
  check_pair(query, candidate);
  const int64_t queries = query.size(0);
  check_ids(options(), batch.candidate_ids, candidate);
  const at::Tensor& probability = batch.candidate_sampling_probability;
  if (probability.defined()) {
    check_probability(probability, candidate);
  }
  if (batch.sample_weights.defined()) {
    check_loss_weights(
        batch.sample_weights, "sample_weights", query, {queries}, kWhere);
  }
  build_on_first_call(Nest<at::Tensor>::list({query, candidate}));
  const int64_t candidates = candidate.size(0);

  at::Tensor scores = at::matmul(query, candidate.t()) / options().temperature;
  if (probability.defined()) {
    // The logarithm is in float64, because a small share may be denormal in float32.
    scores = scores - probability.to(at::kDouble).log().to(scores.dtype());
  }

  const at::Tensor positive = scores.diagonal();  // [batch]
  const auto is_positive = [&] {
    return at::eye(queries, candidates, scores.options().dtype(at::kBool));
  };
  if (options().remove_accidental_hits) {
    const at::Tensor& ids = batch.candidate_ids;
    const at::Tensor is_same_id =
        ids.narrow(0, 0, queries).unsqueeze(1).eq(ids.unsqueeze(0));
    // exp(-inf) and its gradient are 0. Each row still has its positive, so no sum is 0.
    scores = scores.masked_fill(
        is_same_id.logical_and(is_positive().logical_not()), kMinusInfinity);
  }
  const int64_t num_hard = options().num_hard_negatives.value_or(
      std::numeric_limits<int64_t>::max());
  if (num_hard < candidates - 1) {
    const at::Tensor negatives = std::get<0>(
        scores.masked_fill(is_positive(), kMinusInfinity).topk(num_hard, 1));
    scores = at::cat({positive.unsqueeze(1), negatives}, 1);
  }

  const at::Tensor losses = at::logsumexp(scores, 1) - positive;  // [batch]
  const at::Tensor loss =
      reduce_losses(losses, batch.sample_weights, options().reduction);
  TESSERA_CHECK_VALUE(
      all_finite(loss),
      "[Retrieval] the loss must be finite, but the scores, the losses or their weights exceed the range of {}: the loss is {}. Scale the vectors or the weights down, or raise the temperature.",
      loss.scalar_type(),
      number_in_message(loss.item<double>()));
  return loss;
}

}  // namespace tessera
