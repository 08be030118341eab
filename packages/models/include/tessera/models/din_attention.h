// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/common/json_name.h>
#include <tessera/features/feature.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <tessera/models/dice.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The activation between the layers of a DINAttention.
enum class DINActivation {
  kDice,
  /// max(x, 0) + a min(x, 0) with a learned `a` per column, 0.25 at first.
  kPRelu,
  kRelu,
  kSigmoid
};

/// The name of the activation, such as "dice".
std::string to_string(DINActivation activation);

/// The activation with this name.
/// Errors:  c10::ValueError listing the choices.
DINActivation din_activation_from_string(std::string_view name);

/// In JSON, an activation is its name.
template <>
struct JsonValue<DINActivation> : detail::JsonName<din_activation_from_string> {
};

/// The config of a DINAttention layer.
struct DINAttentionOptions {
  /// The widths of the hidden layers, 1 to 1023 of them. A layer of width 1 follows. The
  /// default is that of the paper's code.
  std::vector<int64_t> hidden_units = {80, 40};
  DINActivation activation = DINActivation::kDice;
  /// If true, a softmax gives the weights of a history the sum 1. The paper does not do so,
  /// because the sum of the weights says how strong the interest is.
  bool use_softmax = false;

  bool operator==(const DINAttentionOptions&) const = default;

  TESSERA_FIELDS(hidden_units, activation, use_softmax)
};

/// Returns the lengths of the histories in a ragged feature, [batch], for DINAttention.
/// Errors:  c10::TypeError for a feature that is not ragged.
at::Tensor history_lengths(const Feature& feature);

// snippet: tests/docs/reference_models_test.cpp DINAttentionImpl
/// The attention of a Deep Interest Network. It sums the items k_t of a user's history,
/// weighted by how relevant they are to a candidate item q.
///
///   weight_t = mlp([q, k_t, q - k_t, q * k_t])
///   result   = sum_t weight_t k_t
///
/// The history is a sequence feature of TPUEmbedding, which pads it with zeros. Its
/// lengths say which positions are not padding. These positions alone enter the MLP, and
/// the statistics of Dice. A history of length 0 gives zeros, also with softmax.
///
///   DINAttention attention(
///       DINAttentionOptions{.activation = DINActivation::kPRelu});
///   const auto rows = embedding->forward(features);
///   const auto interest = attention->forward(
///       rows["movie"],
///       rows["history"],  // [batch, 20, dim]
///       history_lengths(features["history"]));
///
/// For many queries of one user, such as all candidates, pass a single history
/// [1, seq, dim]. It then counts for every query.
///
/// The first layer multiplies with q once for each example, and not once for each
/// position. With a single history, it multiplies with the keys once for all queries. In an
/// exported model, the MLP also computes the padding, whose weights are then discarded.
///
/// Parameters:  `linear_0.weight` [hidden_units[0], 4 dim], `linear_0.bias`,
///          `linear_1.weight`, ... with the initial values of torch::nn::Linear;
///          `activation_0.alpha` and so on for Dice, `activation_0.weight` for PRelu.
///          build(), which takes the shape of the query, or the first forward() creates
///          them.
/// Shapes:  query [batch, dim], keys [batch, seq, dim] or [1, seq, dim], lengths [batch] or
///          [1] as the keys, int32 or int64. A length beyond seq counts as seq, because
///          TPUEmbedding truncates longer histories. Without lengths, no position is
///          padding. The result is [batch, dim].
/// Errors:  c10::ValueError for options out of range, negative lengths, and shapes that do
///          not fit; c10::TypeError for other dtypes.
/// Source:  Zhou et al. 2018.
/// Differs: the paper's code divides by sqrt(dim) before a softmax.
class DINAttentionImpl
    : public LayerImpl<DINAttentionImpl, DINAttentionOptions> {
 public:
  static constexpr const char* kClassName = "DINAttention";

  explicit DINAttentionImpl(DINAttentionOptions options = {});

  at::Tensor forward(
      const at::Tensor& query,
      const at::Tensor& keys,
      const at::Tensor& lengths = {});

  /// The shape of the result, for the shape of the query.
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({2, torch::nn::AnyValue(at::Tensor())})

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;
  at::Tensor activated(size_t layer, const at::Tensor& x);
  /// Returns the scores [rows]. `products` are those of queries and keys, and `first` is
  /// the output of the first layer without them.
  at::Tensor scores(const at::Tensor& products, const at::Tensor& first);
  at::Tensor attend_to_one_history(
      const at::Tensor& query,
      const at::Tensor& history,
      const at::Tensor& lengths);

  std::vector<torch::nn::Linear> layers_;
  std::vector<Dice> dices_;
  std::vector<torch::nn::PReLU> prelus_;
};

using DINAttention = LayerHolder<DINAttentionImpl>;

}  // namespace tessera
