// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/mlp.h>

#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()
#include "layers/dense/joined_inputs.h"
#include "layers/dense/mlp_blocks.h"
#include "layers/initial_parameter.h"
#include "src/common/check.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace tessera {

MLPImpl::MLPImpl(MLPOptions options) : LayerImpl(std::move(options)) {
  constexpr size_t kMaxLayers = 1024;
  const std::vector<int64_t>& units = this->options().units;
  TESSERA_CHECK_VALUE(
      !units.empty() && units.size() <= kMaxLayers,
      "[MLP] units must have 1 to {} sizes, but got {}. Set them to the widths of the layers.",
      kMaxLayers,
      units.size());
  const auto smallest = std::ranges::min_element(units);
  TESSERA_CHECK_VALUE(
      *smallest >= 1,
      "[MLP] units[{}] must be >= 1, but got {}. Set it to the width of that layer.",
      smallest - units.begin(),
      *smallest);
  declare();
}

Nest<PartialShape> MLPImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  PartialShape shape = joined_shape(input_shapes, kClassName);
  shape.back() = options().units.back();
  return shape;
}

void MLPImpl::declare_parameters() {
  std::vector<torch::nn::Linear> layers;
  for (size_t i = 0; i < options().units.size(); ++i) {
    layers.push_back(register_module(
        "linear_" + std::to_string(i), unsized_linear(options().use_bias)));
  }
  layers_ = std::move(layers);  // replaces the original's layers in a copy
}

void MLPImpl::make_parameters(const Nest<PartialShape>& input_shapes) {
  int64_t inputs = joined_width(input_shapes, kClassName);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t outputs = options().units[i];
    const torch::nn::Linear linear(
        torch::nn::LinearOptions(inputs, outputs).bias(options().use_bias));
    detail::adopt_parameters(*layers_[i], *linear);
    inputs = outputs;
  }
}

Activation MLPImpl::activation_of(size_t layer) const {
  return layer + 1 < layers_.size() ? options().activation
                                    : options().final_activation;
}

at::Tensor MLPImpl::forward(const Nest<at::Tensor>& inputs) {
  std::vector<at::Tensor> tensors =
      checked_inputs(inputs, kClassName, joined_shape);
  build_on_first_call(inputs);
  const at::Tensor& weight = layers_[0]->weight;
  check_fits(tensors, weight, kClassName);

  JoinedProduct first = without_single_rows(
      {.inputs = std::move(tensors),
       .weight = weight,
       .bias = layers_[0]->bias});
  std::vector<DenseLayer> layers = dense_layers(first);
  if (layers.empty() || !has_mlp_blocks(first.inputs, layers)) {
    return forward_by_operators(first);
  }
  const at::Tensor result = mlp_blocks(first.inputs, layers);
  return has_autocast(result) && !has_few_units()
      ? result.to(at::autocast::get_autocast_dtype(at::kCPU))
      : result;
}

// Under autocast, a last layer of few units stays in float32: rounded logits would often be
// equal.
bool MLPImpl::has_few_units() const {
  constexpr int64_t kFewUnits = 16;
  return options().units.back() <= kFewUnits;
}

// The layers as mlp_blocks() takes them, or none if it can't compute them.
std::vector<DenseLayer> MLPImpl::dense_layers(
    const JoinedProduct& first) const {
  std::vector<DenseLayer> layers;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Activation activation = activation_of(i);
    if (activation != Activation::kRelu && activation != Activation::kLinear) {
      return {};
    }
    layers.push_back(
        {.weight = layers_[i]->weight,
         .bias = layers_[i]->bias,
         .has_relu = activation == Activation::kRelu});
  }
  layers[0].weight = first.weight;
  layers[0].bias = first.bias.defined() ? first.bias.flatten() : first.bias;
  return layers;
}

at::Tensor MLPImpl::forward_by_operators(const JoinedProduct& first) {
  const at::Tensor& last_weight = layers_.back()->weight;
  const bool is_exact = has_autocast(last_weight) && has_few_units();
  at::Tensor x;
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
    JoinedProduct product = i == 0 ? first
                                   : JoinedProduct{
                                         .inputs = {x},
                                         .weight = layers_[i]->weight,
                                         .bias = layers_[i]->bias};
    if (is_exact && i + 1 == layers_.size()) {
      no_autocast.emplace(c10::autocast_dispatch_keyset);
      for (at::Tensor& input : product.inputs) {
        input = input.to(last_weight.scalar_type());
      }
    }
    x = activate(activation_of(i), compute(product));
  }
  return x;
}

}  // namespace tessera
