// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/transformer_block.h>

#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()
#include "layers/initial_parameter.h"
#include "packages/models/src/dropout_sum.h"
#include "packages/models/src/jagged_attention.h"
#include "packages/models/src/model_checks.h"
#include "packages/models/src/sequence_filter.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>

#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr const char* kNormOrders[] = {"pre", "post"};

void check_lengths(const at::Tensor& splits, int64_t most) {
  const at::Tensor lengths = splits.diff();
  TESSERA_CHECK_VALUE(
      lengths.le(most).all().item<bool>(),
      "[TransformerBlock] with a filter, sequences must have at most filter.length = {} positions, but one has {}. Pass its last ones.",
      most,
      lengths.max().item<int64_t>());
}

}  // namespace

std::string to_string(NormOrder order) {
  return kNormOrders[static_cast<size_t>(order)];
}

NormOrder norm_order_from_string(const std::string& name) {
  return value_named<NormOrder::kPost>(name, kNormOrders, "norm");
}

TransformerBlockImpl::TransformerBlockImpl(TransformerBlockOptions options)
    : LayerImpl(std::move(options)) {
  const TransformerBlockOptions& checked = this->options();
  TESSERA_CHECK_VALUE(
      checked.num_heads >= 1,
      "[TransformerBlock] num_heads must be >= 1, but got {}. Set it to a divisor of dim.",
      checked.num_heads);
  TESSERA_CHECK_VALUE(
      checked.feed_forward_dim >= 0,
      "[TransformerBlock] feed_forward_dim must be >= 0, but got {}. Set it to 0 for the width of the input.",
      checked.feed_forward_dim);
  // These comparisons are also false for NaN.
  TESSERA_CHECK_VALUE(
      checked.dropout >= 0.0 && checked.dropout < 1.0,
      "[TransformerBlock] dropout must be in [0, 1), but got {}. Set it to 0 to drop nothing.",
      checked.dropout);
  TESSERA_CHECK_VALUE(
      checked.attention_dropout >= 0.0 && checked.attention_dropout < 1.0,
      "[TransformerBlock] attention_dropout must be in [0, 1), but got {}. Set it to 0 to drop nothing.",
      checked.attention_dropout);
  if (checked.filter) {
    const auto& [share, num_frequencies, length] = *checked.filter;
    TESSERA_CHECK_VALUE(
        checked.norm == NormOrder::kPost && !checked.gated,
        "[TransformerBlock] a filter needs norm = NormOrder::kPost and gated = false. Set them so, or leave the filter out.");
    TESSERA_CHECK_VALUE(
        share >= 0.0 && share <= 1.0,
        "[TransformerBlock] filter.share must be in [0, 1], but got {}. Set it to 0.5 for equal shares of filter and attention.",
        share);
    TESSERA_CHECK_VALUE(
        length >= 1 && num_frequencies >= 1 &&
            num_frequencies <= length / 2 + 1,
        "[TransformerBlock] filter.length must be >= 1, and filter.num_frequencies in [1, length / 2 + 1], but got {} and {}. Set length to that of the longest sequence.",
        length,
        num_frequencies);
  }
  declare();
}

Nest<PartialShape> TransformerBlockImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  return check_positions(input_shapes, options().num_heads, kClassName);
}

int64_t TransformerBlockImpl::hidden_units(int64_t dim) const {
  return options().feed_forward_dim == 0 ? dim : options().feed_forward_dim;
}

MLP TransformerBlockImpl::feed_forward_of(int64_t dim) const {
  return MLP(MLPOptions{
      .units = {hidden_units(dim), dim}, .activation = options().activation});
}

void TransformerBlockImpl::declare_parameters() {
  attention_norm_ = register_module("attention_norm", unsized_layer_norm());
  attention_ = register_module(
      "attention",
      CausalSelfAttention(CausalSelfAttentionOptions{
          .num_heads = options().num_heads,
          .dropout = options().attention_dropout}));
  if (options().filter) {
    filter_norm_ = register_module("filter_norm", unsized_layer_norm());
    filter_scale_ =
        register_parameter("filter_scale", detail::unsized_parameter());
  }
  feed_forward_norm_ =
      register_module("feed_forward_norm", unsized_layer_norm());
  if (!options().gated) {
    feed_forward_ = register_module("feed_forward", feed_forward_of(/*dim=*/1));
    return;
  }
  attention_gate_ = register_module("attention_gate", unsized_linear());
  feed_forward_gate_ = register_module("feed_forward_gate", unsized_linear());
  hidden_ = register_module("hidden", unsized_linear(/*use_bias=*/false));
  output_ = register_module("output", unsized_linear(/*use_bias=*/false));
}

void TransformerBlockImpl::make_parameters(
    const Nest<PartialShape>& input_shapes) {
  const int64_t dim = known_dim(input_shapes.leaf(), kClassName);
  const PartialShape shape{std::nullopt, dim};
  std::vector<torch::nn::LayerNorm> norms{attention_norm_, feed_forward_norm_};
  if (options().filter) {
    norms.push_back(filter_norm_);
    detail::adopt_values(filter_scale_, at::randn({dim}, at::kFloat));
  }
  for (const auto& norm : norms) {
    const torch::nn::LayerNorm sized(torch::nn::LayerNormOptions({dim}));
    detail::adopt_parameters(*norm.ptr(), *sized);
  }
  attention_->build(shape);
  if (options().gated) {
    const auto build = [](const torch::nn::Linear& linear,
                          int64_t inputs,
                          int64_t outputs) {
      const torch::nn::Linear sized(torch::nn::LinearOptions(inputs, outputs)
                                        .bias(linear->options.bias()));
      detail::adopt_parameters(*linear.ptr(), *sized);
    };
    const int64_t hidden = hidden_units(dim);
    build(attention_gate_, dim, dim);
    build(feed_forward_gate_, dim, dim);
    build(hidden_, dim, 2 * hidden);
    build(output_, hidden, dim);
    return;
  }
  MLP feed_forward = feed_forward_of(dim);
  feed_forward->build(shape);
  feed_forward_->adopt(*feed_forward);
}

at::Tensor TransformerBlockImpl::feed_forward(const at::Tensor& x) {
  if (!options().gated) {
    return feed_forward_->forward(x);
  }
  const std::vector<at::Tensor> halves = hidden_->forward(x).chunk(2, 1);
  return output_->forward(
      activate(options().activation, halves[0]) * halves[1]);
}

at::Tensor TransformerBlockImpl::forward(
    const at::Tensor& x,
    const at::Tensor& row_splits) {
  return forward(x, row_splits, /*kept_rows=*/{});
}

at::Tensor TransformerBlockImpl::forward_last(
    const at::Tensor& x,
    const at::Tensor& row_splits) {
  check_floating(x, "x", kClassName);
  const at::Tensor splits =
      checked_row_splits(row_splits, x.size(0), kClassName);
  TESSERA_CHECK_VALUE(
      splits.diff().gt(0).all().item<bool>(),
      "[TransformerBlock] forward_last() needs one position or more in each sequence, but one is empty. Leave it out.");
  return forward(x, splits, splits.narrow(0, 1, splits.size(0) - 1) - 1);
}

// Only the attention and the filter read other rows than `kept_rows`. Undefined: all rows
// are kept.
at::Tensor TransformerBlockImpl::forward(
    const at::Tensor& x,
    const at::Tensor& row_splits,
    const at::Tensor& kept_rows) {
  check_floating(x, "x", kClassName);
  compute_output_shape(shapes_of(x, "[TransformerBlock] "));
  build_on_first_call(x);
  TESSERA_CHECK_VALUE(
      x.size(1) == attention_norm_->weight.size(0),
      "[TransformerBlock] was built for dim {}, but got {}. Make another layer for this dim.",
      attention_norm_->weight.size(0),
      x.size(1));
  const double dropout = is_training() ? options().dropout : 0.0;
  const bool is_pre = options().norm == NormOrder::kPre;
  const auto kept = [&](const at::Tensor& rows) {
    return kept_rows.defined()
        ? rows.index_select(0, kept_rows.to(rows.device()))
        : rows;
  };
  const auto add_part = [&](const at::Tensor& input,
                            const at::Tensor& output,
                            torch::nn::LayerNorm& norm,
                            torch::nn::Linear& gate) {
    const at::Tensor sum = options().gated
        ? input +
            at::sigmoid(gate->forward(input)) *
                dropout_sum(output, at::Tensor(), dropout)
        : dropout_sum(output, input, dropout);
    return is_pre ? sum : norm->forward(sum);
  };
  const at::Tensor splits =
      checked_row_splits(row_splits, x.size(0), kClassName);
  const at::Tensor own = kept(x);
  at::Tensor attended = add_part(
      own,
      kept(attention_->forward(
          is_pre ? attention_norm_->forward(x) : x, splits)),
      attention_norm_,
      attention_gate_);
  if (const auto& filter = options().filter) {
    check_lengths(splits, filter->length);
    const at::Tensor low = kept(
        low_frequencies(x, splits, filter->length, filter->num_frequencies));
    const at::Tensor filtered = filter_norm_->forward(
        dropout_sum(low + filter_scale_.square() * (own - low), own, dropout));
    attended = filter->share * filtered + (1.0 - filter->share) * attended;
  }
  return add_part(
      attended,
      feed_forward(is_pre ? feed_forward_norm_->forward(attended) : attended),
      feed_forward_norm_,
      feed_forward_gate_);
}

}  // namespace tessera
