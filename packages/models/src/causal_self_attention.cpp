// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/causal_self_attention.h>

#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()
#include "layers/initial_parameter.h"
#include "packages/models/src/jagged_attention.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"

#include <utility>

namespace tessera {

CausalSelfAttentionImpl::CausalSelfAttentionImpl(
    CausalSelfAttentionOptions options)
    : LayerImpl(std::move(options)) {
  TESSERA_CHECK_VALUE(
      this->options().num_heads >= 1,
      "[CausalSelfAttention] num_heads must be >= 1, but got {}. Set it to a divisor of dim.",
      this->options().num_heads);
  TESSERA_CHECK_VALUE(
      this->options().dropout >= 0.0 && this->options().dropout < 1.0,
      "[CausalSelfAttention] dropout must be in [0, 1), but got {}. Set it to 0 to drop nothing.",
      this->options().dropout);
  declare();
}

Nest<PartialShape> CausalSelfAttentionImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  return check_positions(input_shapes, options().num_heads, kClassName);
}

void CausalSelfAttentionImpl::declare_parameters() {
  in_projection_ =
      register_module("in_projection", unsized_linear(options().use_bias));
  out_projection_ =
      register_module("out_projection", unsized_linear(options().use_bias));
}

void CausalSelfAttentionImpl::make_parameters(
    const Nest<PartialShape>& input_shapes) {
  const int64_t dim = known_dim(input_shapes.leaf(), kClassName);
  const auto linear = [&](int64_t outputs) {
    return torch::nn::Linear(
        torch::nn::LinearOptions(dim, outputs).bias(options().use_bias));
  };
  detail::adopt_parameters(*in_projection_, *linear(3 * dim));
  detail::adopt_parameters(*out_projection_, *linear(dim));
}

at::Tensor CausalSelfAttentionImpl::forward(
    const at::Tensor& x,
    const at::Tensor& row_splits) {
  check_floating(x, "x", kClassName);
  compute_output_shape(shapes_of(x, "[CausalSelfAttention] "));
  const at::Tensor splits =
      checked_row_splits(row_splits, x.size(0), kClassName);
  build_on_first_call(x);
  check_fits(x, in_projection_->weight.t(), kClassName);
  return out_projection_->forward(jagged_causal_attention(
      in_projection_->forward(x),
      splits,
      options().num_heads,
      is_training() ? options().dropout : 0.0));
}

}  // namespace tessera
