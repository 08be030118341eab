// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/common/json_name.h>
#include <tessera/features/nest.h>
#include <tessera/layers/dense/activation.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <tessera/models/causal_self_attention.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

/// Where a TransformerBlock normalizes: the input of each part, or the sum after it.
enum class NormOrder { kPre, kPost };

/// "pre" or "post".
std::string to_string(NormOrder order);
/// Errors:  c10::ValueError listing the choices.
NormOrder norm_order_from_string(const std::string& name);

/// In JSON, a NormOrder is its name.
template <>
struct JsonValue<NormOrder> : detail::JsonName<norm_order_from_string> {};

// snippet: tests/docs/reference_sasrec_test.cpp SequenceFilterOptions
/// A filter of frequencies along the sequence, beside the attention of a TransformerBlock. It
/// shows each position the later ones, too, so a model predicts only what follows the last:
///
///   SASRec model(SASRecOptions{
///       .num_items = 1000,
///       .max_length = 50,
///       .block =
///           {.norm = NormOrder::kPost,
///            .filter = SequenceFilterOptions{.share = 0.7, .length = 50}},
///       .one_target = true,
///       .optimizer = optim::Adam{.learning_rate = 0.001}});
///   // The beginnings of the history 7, 8, 9: 7, then 8, and 7, 8, then 9.
///   const RaggedFeature sequences{
///       .values = torch::tensor({7, 7, 8}),
///       .row_splits = torch::tensor({0, 1, 3})};
///   model->softmax_loss(sequences, torch::tensor({8, 9})).backward();
///
/// Its formula is that of TransformerBlock.
struct SequenceFilterOptions {
  /// The share of the filter in the sum, in [0, 1]. The attention has the rest.
  double share = 0.5;
  /// The number of low frequencies, in [1, length / 2 + 1]. The first is the mean.
  int64_t num_frequencies = 3;
  /// The number of positions of the Fourier transform, which no sequence may exceed. A
  /// shorter sequence is the end, after zeros.
  int64_t length = 0;

  bool operator==(const SequenceFilterOptions&) const = default;

  TESSERA_FIELDS(share, num_frequencies, length)
};

/// The config of a TransformerBlock.
struct TransformerBlockOptions {
  int64_t num_heads = 1;
  /// The width of the hidden layer of the feed-forward network. 0: dim.
  int64_t feed_forward_dim = 0;
  Activation activation = Activation::kRelu;
  /// The share of the outputs of attention and feed-forward network that train() sets
  /// to 0, in [0, 1).
  double dropout = 0.0;
  NormOrder norm = NormOrder::kPre;
  /// If true, gates scale what attention and feed-forward network add, and the hidden
  /// layer is gated, as in LiGR. The LiGR paper has Activation::kSilu.
  bool gated = false;
  /// The probability with which train() sets an attention weight to 0, in [0, 1). The others
  /// are divided by 1 - attention_dropout.
  double attention_dropout = 0.0;
  /// Needs NormOrder::kPost, and not `gated`.
  std::optional<SequenceFilterOptions> filter = {};

  bool operator==(const TransformerBlockOptions&) const = default;

  TESSERA_FIELDS(
      num_heads,
      feed_forward_dim,
      activation,
      dropout,
      norm,
      gated,
      attention_dropout,
      filter)
};

// snippet: tests/docs/reference_sasrec_test.cpp TransformerBlockImpl
/// A block of a transformer on a jagged batch: causal self-attention, then a feed-forward
/// network for each position.
///
///   TransformerBlock block(
///       TransformerBlockOptions{.num_heads = 2, .dropout = 0.2});
///   const auto x = torch::randn({5, 8});  // two sequences, of 3 and 2 positions
///   const auto y = block->forward(x, torch::tensor({0, 3, 5}));
///
/// With NormOrder::kPre, as in SASRec:
///
///   x = x + dropout(attention(attention_norm(x)))
///   x = x + dropout(feed_forward(feed_forward_norm(x)))
///
/// With NormOrder::kPost:
///
///   x = attention_norm(x + dropout(attention(x)))
///   x = feed_forward_norm(x + dropout(feed_forward(x)))
///
/// With `gated`, as in LiGR, here with NormOrder::kPre:
///
///   x = x + sigmoid(attention_gate(x)) * dropout(attention(attention_norm(x)))
///   x = x + sigmoid(feed_forward_gate(x)) * dropout(feed_forward(feed_forward_norm(x)))
///
///   [a, b] = hidden(x),  feed_forward(x) = output(activation(a) * b)
///
/// With `filter`, as in BSARec, the first line is:
///
///   low = irfft(rfft(x) without the frequencies from num_frequencies on)
///   x   = share * filter_norm(x + dropout(low + filter_scale^2 * (x - low)))
///       + (1 - share) * attention_norm(x + dropout(attention(x)))
///
/// torch::manual_seed() determines what is dropped out and the initial values, for any number
/// of threads.
///
/// Parts:   `attention_norm`, `attention`, `feed_forward_norm`, `feed_forward`: LayerNorm,
///          CausalSelfAttention, LayerNorm and MLP. With `gated`, the MLP is replaced by
///          `hidden` and `output`, without biases, and there are `attention_gate` and
///          `feed_forward_gate`: Linear. With `filter`, there are `filter_norm` and
///          `filter_scale` [dim], which begins with normal numbers.
/// Shapes:  x [nnz, dim], row_splits [batch + 1]; the result [nnz, dim].
/// Errors:  c10::ValueError for options out of range; otherwise as for
///          CausalSelfAttention.
/// Source:  Kang and McAuley 2018; Vaswani et al. 2017; LiGR: Borisyuk et al. 2025,
///          arXiv:2502.03417, as in eSASRec, Tikhonovich et al. 2025; BSARec: Shin et al.
///          2024, arXiv:2312.10325.
/// Differs: with `filter`, BSARec has learned vectors in place of the zeros.
class TransformerBlockImpl
    : public LayerImpl<TransformerBlockImpl, TransformerBlockOptions> {
 public:
  static constexpr const char* kClassName = "TransformerBlock";

  explicit TransformerBlockImpl(TransformerBlockOptions options = {});

  at::Tensor forward(const at::Tensor& x, const at::Tensor& row_splits);
  /// The result of forward() at the last position of each sequence, [batch, dim]. No
  /// sequence may be empty.
  at::Tensor forward_last(const at::Tensor& x, const at::Tensor& row_splits);

  /// `input_shapes` is the shape of x.
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;
  int64_t hidden_units(int64_t dim) const;
  MLP feed_forward_of(int64_t dim) const;
  at::Tensor feed_forward(const at::Tensor& x);
  at::Tensor forward(
      const at::Tensor& x,
      const at::Tensor& row_splits,
      const at::Tensor& kept_rows);

  torch::nn::LayerNorm attention_norm_{nullptr};
  CausalSelfAttention attention_{nullptr};
  torch::nn::LayerNorm filter_norm_{nullptr};  // with `filter`, as the next
  at::Tensor filter_scale_;  // [dim]
  torch::nn::LayerNorm feed_forward_norm_{nullptr};
  MLP feed_forward_{nullptr};  // replaced by the next four with `gated`
  torch::nn::Linear attention_gate_{nullptr};
  torch::nn::Linear feed_forward_gate_{nullptr};
  torch::nn::Linear hidden_{nullptr};
  torch::nn::Linear output_{nullptr};
};

using TransformerBlock = LayerHolder<TransformerBlockImpl>;

}  // namespace tessera
