// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/mlp.h>

#include <tessera/common/shorten.h>
#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()
#include "layers/initial_parameter.h"
#include "layers/mlp_blocks.h"
#include "src/common/check.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tessera {

namespace {

std::string name_of(const std::string& path) {
  return path.empty() ? "MLP" : c10::str("MLP '", shorten(path), "'");
}

// The shape of the inputs joined along the last axis.
PartialShape joined_shape(const Nest<PartialShape>& input_shapes) {
  std::optional<PartialShape> joined;
  input_shapes.for_each([&](const std::string& path,
                            const PartialShape& shape) {
    check_rows(shape, name_of(path));
    if (!joined) {
      joined = shape;
      return;
    }
    PartialShape rows = shape;
    PartialShape other_rows = *joined;
    rows.back() = std::nullopt;
    other_rows.back() = std::nullopt;
    const std::optional<PartialShape> both = merge(other_rows, rows);
    TESSERA_CHECK_VALUE(
        both,
        "[{}] all inputs must have the same sizes except the last one, but this one has the shape {} and the earlier ones {}. Correct the batch.",
        name_of(path),
        to_string(shape),
        to_string(other_rows));
    const std::optional<int64_t> width = joined->back();
    joined = both;
    joined->back() = width && shape.back()
        ? std::optional(*width + *shape.back())
        : std::nullopt;
  });
  TESSERA_CHECK_VALUE(
      joined,
      "[MLP] expected one input or more, but got an empty nest. Pass at least one.");
  return *joined;
}

// Whether autocast chooses the dtype of operators on this tensor.
bool has_autocast(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  return at::autocast::is_autocast_available(device) &&
      at::autocast::is_autocast_enabled(device);
}

// Returns whether mlp_blocks() can compute the activation.
bool is_relu_or_linear(Activation activation) {
  return activation == Activation::kRelu || activation == Activation::kLinear;
}

}  // namespace

MLPImpl::MLPImpl(MLPOptions options) : LayerImpl(std::move(options)) {
  constexpr size_t kMaxLayers = 1024;
  const std::vector<int64_t>& units = this->options().units;
  TESSERA_CHECK_VALUE(
      !units.empty() && units.size() <= kMaxLayers,
      "[MLP] units must have 1 to {} sizes, but got {}. Set them to the widths of the layers.",
      kMaxLayers,
      units.size());
  const auto smallest = std::min_element(units.begin(), units.end());
  TESSERA_CHECK_VALUE(
      *smallest >= 1,
      "[MLP] units[{}] must be >= 1, but got {}. Set it to the width of that layer.",
      smallest - units.begin(),
      *smallest);
  declare();
}

Nest<PartialShape> MLPImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  PartialShape shape = joined_shape(input_shapes);
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
  int64_t inputs = 0;
  input_shapes.for_each(
      [&](const std::string& path, const PartialShape& shape) {
        inputs += known_dim(shape, name_of(path));
      });
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
  std::vector<at::Tensor> tensors;
  std::vector<PartialShape> shapes;
  inputs.for_each([&](const std::string& path, const at::Tensor& leaf) {
    check_floating(
        leaf,
        path.empty() ? "input" : c10::str("input '", shorten(path), "'"),
        kClassName);
    const bool is_frozen = leaf.is_inference() && at::GradMode::is_enabled();
    tensors.push_back(is_frozen ? leaf.clone() : leaf);  // for backward
    shapes.emplace_back(leaf.sizes().begin(), leaf.sizes().end());
    TESSERA_CHECK_TYPE(
        leaf.scalar_type() == tensors[0].scalar_type() || has_autocast(leaf),
        "[{}] all inputs must have the same dtype, but this one has {} and the first one {}. Convert one of them with .to().",
        name_of(path),
        leaf.scalar_type(),
        tensors[0].scalar_type());
  });
  const PartialShape joined = joined_shape(inputs.pack(std::move(shapes)));
  build_on_first_call(inputs);
  const at::Tensor& weight = layers_[0]->weight;
  TESSERA_CHECK_VALUE(
      *joined.back() == weight.size(1),
      "[MLP] was built for inputs of {} columns in total, but got {}. Make another layer for inputs of this size.",
      weight.size(1),
      *joined.back());
  TESSERA_CHECK_TYPE(
      tensors[0].scalar_type() == weight.scalar_type() ||
          has_autocast(tensors[0]),
      "[MLP] has parameters of {}, but got inputs of {}. Convert one of them with .to().",
      weight.scalar_type(),
      tensors[0].scalar_type());

  std::vector<DenseLayer> layers;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!is_relu_or_linear(activation_of(i))) {
      return forward_by_operators(tensors);
    }
    layers.push_back(
        {.weight = layers_[i]->weight,
         .bias = layers_[i]->bias,
         .has_relu = activation_of(i) == Activation::kRelu});
  }
  return has_mlp_blocks(tensors, layers) ? mlp_blocks(tensors, layers)
                                         : forward_by_operators(tensors);
}

at::Tensor MLPImpl::forward_by_operators(
    const std::vector<at::Tensor>& inputs) {
  at::Tensor x = inputs.size() == 1 ? inputs[0] : at::cat(inputs, -1);
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = activate(activation_of(i), layers_[i]->forward(x));
  }
  return x;
}

}  // namespace tessera
