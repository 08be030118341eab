// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/common/json_name.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

/// How the losses of a batch are reduced to one:
///
///   kSum   their sum, as in tfrs.tasks.Retrieval; the gradient grows with the batch
///   kMean  their sum / batch, also if the examples have weights
enum class LossReduction { kSum, kMean };

const char* to_string(LossReduction reduction);
/// Errors:  c10::ValueError listing the choices.
LossReduction loss_reduction_from_string(const std::string& name);

template <>
struct JsonValue<LossReduction> : detail::JsonName<loss_reduction_from_string> {
};

/// The config of a Retrieval layer.
struct RetrievalOptions {
  /// Scores are divided by this number. For vectors of length 1, choose about 0.05 to 0.2.
  double temperature = 1.0;
  /// The number of negatives per query. Those with the highest scores are used. If unset,
  /// or if there are not more negatives, all are used.
  std::optional<int64_t> num_hard_negatives = {};
  /// Whether to leave out negatives that have the id of the query's own candidate.
  bool remove_accidental_hits = false;
  LossReduction reduction = LossReduction::kSum;

  bool operator==(const RetrievalOptions&) const = default;

  TESSERA_FIELDS(
      temperature,
      num_hard_negatives,
      remove_accidental_hits,
      reduction)
};

/// Optional data of a batch. Tensors that are not given stay undefined.
struct RetrievalBatch {
  at::Tensor candidate_ids = {};  // [candidates] int32 or int64
  /// The probability that a random candidate of the training data is this one, in (0, 1]:
  /// its share of the data, or SamplingProbability's estimate of that share.
  at::Tensor candidate_sampling_probability = {};  // [candidates] floats
  at::Tensor sample_weights = {};  // [batch] floats >= 0
};

// snippet: tests/docs/reference_layers_test.cpp RetrievalImpl
/// The loss of a model with a query tower and a candidate tower. For each query, it is
/// the softmax cross entropy over the candidates of the batch, with the query's own
/// candidate as the label.
///
///   Retrieval retrieval(RetrievalOptions{.remove_accidental_hits = true});
///   const auto loss = retrieval->forward(
///       users,
///       movies,
///       {.candidate_ids = ids, .candidate_sampling_probability = share_of_ids});
///   loss.backward();
///
///   score(i, j) = <query i, candidate j> / temperature - log(probability j)
///   loss i = log(sum over j of exp(score(i, j))) - score(i, i)
///
/// Candidate i belongs to query i. Further candidates are negatives for all queries.
/// Popular candidates are in more batches, so they are negatives more often than in a
/// softmax over all candidates. The probabilities correct that. After this correction,
/// accidental hits are left out of the sum, and then the negatives that are not hard.
/// Their gradient is exactly zero. Without `remove_accidental_hits`, the ids are not
/// used. Small probabilities are used as they are, while TFRS 0.7.7 raises them to 1e-6.
///
/// Shapes:  query [batch, dim], candidate [candidates, dim] with candidates >= batch,
///          both float32 or float64. The result is a scalar.
/// Errors:  c10::ValueError or TypeError for shapes, dtypes, devices and values, such as
///          NaN and infinity, and for a loss that overflows. A negative whose score is
///          below the dtype's range adds nothing to the loss.
/// Source:  tfrs.tasks.Retrieval; Yi et al. 2019, doi:10.1145/3298689.3346996.
class RetrievalImpl : public LayerImpl<RetrievalImpl, RetrievalOptions> {
 public:
  static constexpr const char* kClassName = "Retrieval";

  /// Errors:  c10::ValueError for a temperature that is not positive and finite,
  ///          or num_hard_negatives < 1.
  explicit RetrievalImpl(RetrievalOptions options = {});

  at::Tensor forward(
      const at::Tensor& query,
      const at::Tensor& candidate,
      const RetrievalBatch& batch = {});

  /// The shape of the loss. `input_shapes` lists the shapes of query and candidate.
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({2, torch::nn::AnyValue(RetrievalBatch{})})
};

using Retrieval = LayerHolder<RetrievalImpl>;

}  // namespace tessera
