// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/transformer_block.h>

#include <tessera/common/shorten.h>
#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()
#include "layers/initial_parameter.h"
#include "packages/models/src/dropout_sum.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>

#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr const char* kNormOrders[] = {"pre", "post"};

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
      CausalSelfAttention(
          CausalSelfAttentionOptions{.num_heads = options().num_heads}));
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
  for (const auto& norm : {attention_norm_, feed_forward_norm_}) {
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
  const auto add_part = [&](const at::Tensor& input,
                            torch::nn::LayerNorm& norm,
                            torch::nn::Linear& gate,
                            const auto& part) {
    const at::Tensor output = part(is_pre ? norm->forward(input) : input);
    const at::Tensor sum = options().gated
        ? input +
            at::sigmoid(gate->forward(input)) *
                dropout_sum(output, at::Tensor(), dropout)
        : dropout_sum(output, input, dropout);
    return is_pre ? sum : norm->forward(sum);
  };
  const at::Tensor attended = add_part(
      x, attention_norm_, attention_gate_, [&](const at::Tensor& input) {
        return attention_->forward(input, row_splits);
      });
  return add_part(
      attended,
      feed_forward_norm_,
      feed_forward_gate_,
      [&](const at::Tensor& input) { return feed_forward(input); });
}

}  // namespace tessera
