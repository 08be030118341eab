// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/multi_layer_dcn.h>

#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()
#include "layers/dense/joined_inputs.h"
#include "layers/dense/low_rank_crosses.h"
#include "src/common/check.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/functional.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tessera {

namespace {

std::vector<Cross> crosses_of(const MultiLayerDCNOptions& options) {
  std::vector<Cross> layers;
  for (int64_t i = 0; i < options.num_layers; ++i) {
    layers.emplace_back(CrossOptions{
        .projection_dim = options.projection_dim,
        .use_bias = options.use_bias,
        .kernel_initializer = options.kernel_initializer,
        .bias_initializer = options.bias_initializer});
  }
  return layers;
}

LowRankCross parameters_of(const CrossImpl& layer) {
  const auto own = layer.named_parameters(/*recurse=*/false);
  const at::Tensor* bias = own.find("bias");
  return {
      own["kernel_u"], own["kernel_v"], bias == nullptr ? at::Tensor() : *bias};
}

}  // namespace

MultiLayerDCNImpl::MultiLayerDCNImpl(MultiLayerDCNOptions options)
    : LayerImpl(std::move(options)) {
  constexpr int64_t kMaxLayers = 1024;
  const MultiLayerDCNOptions& checked = this->options();
  TESSERA_CHECK_VALUE(
      checked.projection_dim >= 1,
      "[MultiLayerDCN] projection_dim must be >= 1, but got {}. For full matrices, stack Cross layers.",
      checked.projection_dim);
  TESSERA_CHECK_VALUE(
      checked.num_layers >= 0 && checked.num_layers <= kMaxLayers,
      "[MultiLayerDCN] num_layers must be in [0, {}], but got {}. Set it to the number of crosses.",
      kMaxLayers,
      checked.num_layers);
  validate(checked.kernel_initializer, "[MultiLayerDCN kernel]");
  validate(checked.bias_initializer, "[MultiLayerDCN bias]");
  declare();
}

Nest<PartialShape> MultiLayerDCNImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  return joined_shape(input_shapes, kClassName);
}

void MultiLayerDCNImpl::declare_parameters() {
  std::vector<Cross> layers = crosses_of(options());
  for (size_t i = 0; i < layers.size(); ++i) {
    register_module("cross_" + std::to_string(i), layers[i]);
  }
  layers_ = std::move(layers);  // replaces the original's layers in a copy
}

void MultiLayerDCNImpl::build(const Nest<PartialShape>& input_shapes) {
  const PartialShape joined = joined_shape(input_shapes, kClassName);
  joined_width(input_shapes, kClassName);  // an error names the input
  LayerImpl::build(joined);
}

void MultiLayerDCNImpl::make_parameters(
    const Nest<PartialShape>& input_shapes) {
  known_dim(input_shapes.leaf(), kClassName);
  // Build new layers before an old one changes, because a callable may throw.
  std::vector<Cross> layers = crosses_of(options());
  for (Cross& layer : layers) {
    layer->build(input_shapes);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    layers_[i]->adopt(*layers[i]);
  }
}

at::Tensor MultiLayerDCNImpl::forward(const Nest<at::Tensor>& x0) {
  std::vector<at::Tensor> inputs =
      with_equal_batches(checked_inputs(x0, kClassName, joined_shape));
  const bool is_mixed =
      std::ranges::any_of(inputs, [&](const at::Tensor& input) {
        return input.scalar_type() != inputs[0].scalar_type();
      });
  if (is_mixed) {
    inputs = {joined(inputs)};  // the kernels need one dtype
  }
  build_on_first_call(x0);
  const auto crosses = c10::fmap(
      layers_, [](const Cross& layer) { return parameters_of(*layer); });
  if (!crosses.empty()) {
    check_columns(inputs, crosses[0].u.size(0), kClassName);
  }
  if (has_low_rank_crosses(inputs, crosses)) {
    return low_rank_crosses(inputs, crosses);
  }
  at::Tensor all = joined(inputs);
  if (has_autocast(all) && !layers_.empty()) {
    // Otherwise, each product would convert x, and each cross would compute in float32.
    all = all.to(at::autocast::get_autocast_dtype(all.device().type()));
  }
  at::Tensor x = all;
  for (Cross& layer : layers_) {
    x = layer->forward(all, x);
  }
  return x;
}

}  // namespace tessera
