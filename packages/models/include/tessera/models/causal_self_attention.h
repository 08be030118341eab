// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace tessera {

/// The config of a CausalSelfAttention layer.
struct CausalSelfAttentionOptions {
  /// Each head has dim / num_heads columns.
  int64_t num_heads = 1;
  bool use_bias = true;
  /// The probability with which train() sets an attention weight, which is a result of the
  /// softmax, to 0, in [0, 1). The others are divided by 1 - dropout.
  double dropout = 0.0;

  bool operator==(const CausalSelfAttentionOptions&) const = default;

  TESSERA_FIELDS(num_heads, use_bias, dropout)
};

// snippet: tests/docs/reference_sasrec_test.cpp CausalSelfAttentionImpl
/// Self-attention over the earlier positions of each sequence of a jagged batch.
///
///   CausalSelfAttention attention(CausalSelfAttentionOptions{.num_heads = 2});
///   const auto x = torch::randn({5, 8});  // two sequences, of 3 and 2 positions
///   const auto attended = attention->forward(x, torch::tensor({0, 3, 5}));
///
/// Sequences lie one after the other, without padding, so no work is done for positions
/// that are not there. Position i of a sequence attends to its positions 0 to i:
///
///   query, key, value = columns of x in_projection, split into heads
///   attended[i] = sum over j <= i of softmax_j(query[i] key[j] / sqrt(head_dim)) value[j]
///   result      = attended out_projection
///
/// In float32 on the CPU, each sequence is a task for one thread, and memory is linear in
/// its length. Other dtypes and devices, and second derivatives, use LibTorch's operators.
///
/// Parameters:  `in_projection.weight` [3 dim, dim], `in_projection.bias` [3 dim],
///          `out_projection.weight` [dim, dim], `out_projection.bias` [dim], with the
///          initial values of torch::nn::Linear. torch::manual_seed() sets their seed.
/// Shapes:  x [nnz, dim], row_splits [batch + 1] as in RaggedFeature; the result
///          [nnz, dim].
/// Errors:  c10::ValueError if num_heads does not divide dim, and for wrong row splits;
///          c10::TypeError for wrong dtypes.
/// Source:  Vaswani et al. 2017; torch.nn.MultiheadAttention with a causal mask.
class CausalSelfAttentionImpl
    : public LayerImpl<CausalSelfAttentionImpl, CausalSelfAttentionOptions> {
 public:
  static constexpr const char* kClassName = "CausalSelfAttention";

  explicit CausalSelfAttentionImpl(CausalSelfAttentionOptions options = {});

  at::Tensor forward(const at::Tensor& x, const at::Tensor& row_splits);

  /// `input_shapes` is the shape of x.
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;

  torch::nn::Linear in_projection_{nullptr};
  torch::nn::Linear out_projection_{nullptr};
};

using CausalSelfAttention = LayerHolder<CausalSelfAttentionImpl>;

}  // namespace tessera
