// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/dense/activation.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

struct DenseLayer;
struct JoinedProduct;

/// The config of an MLP layer.
struct MLPOptions {
  /// The width of each layer's output, from the first layer to the last. There are 1 to
  /// 1024 layers.
  std::vector<int64_t> units = {};
  /// The activation after each layer but the last.
  Activation activation = Activation::kRelu;
  /// The activation after the last layer.
  Activation final_activation = Activation::kLinear;
  bool use_bias = true;

  bool operator==(const MLPOptions&) const = default;

  TESSERA_FIELDS(units, activation, final_activation, use_bias)
};

// snippet: tests/docs/reference_layers_test.cpp MLPImpl
/// A multilayer perceptron: a stack of torch::nn::Linear with activations.
///
///   MLP tower(MLPOptions{.units = {64, 1}});
///   const auto logits = tower->forward({{"dense", dense}, {"dots", dots}});
///
/// Several inputs are joined along the last axis, in the order of the nest. This needs no
/// call of torch::cat. In a torch::nn::Sequential, the layer may come after one that
/// returns a nest or a tensor.
///
/// An input may have one row beside inputs of many rows, such as the vector of a user
/// beside those of candidates. It counts for all rows, and if inputs have two dimensions,
/// the first layer computes its part of the product once.
///
/// In float32 on the CPU, with AVX-512 and the activations relu and linear, the layer is
/// faster than a torch::nn::Sequential of the same parts, because one thread computes all
/// layers for a block of rows while these rows are in its cache. This needs at least as
/// many blocks as threads, or at least 8 blocks and half as many blocks as threads. With
/// fewer blocks, LibTorch's operators compute the result, and its last bits differ. Large
/// layers, such as three of 1000 units, have one block, and all threads share each product.
/// On processors that are not AMD's, LibTorch's operators compute them.
///
/// Under autocast, an MLP of small layers stays in float32, and so does a last layer of at
/// most 16 units, because rounded logits would often be equal.
///
/// The backward pass reads the inputs, so don't change them in place before it.
///
/// Parameters:  `linear_0.weight` [units[0], n], `linear_0.bias` [units[0]],
///          `linear_1.weight`, ... with the initial values of torch::nn::Linear.
///          torch::manual_seed() sets their seed.
/// Shapes:  inputs [batch, ..., n_i] or [1, ..., n_i] that differ in nothing else, or one
///          such tensor; the result [batch, ..., units.back()]. Once the layer is built,
///          forward() needs the same sum of all n_i, but not the same nest.
/// Errors:  c10::ValueError for options out of range, an empty nest and another sum of
///          widths; c10::ValueError naming the path, for different batch sizes;
///          c10::TypeError for different dtypes without autocast, or integers.
/// Source:  tfrs.layers.blocks.MLP; torchrec.modules.mlp.MLP.
class MLPImpl : public LayerImpl<MLPImpl, MLPOptions> {
 public:
  static constexpr const char* kClassName = "MLP";

  explicit MLPImpl(MLPOptions options);

  at::Tensor forward(const Nest<at::Tensor>& inputs);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;
  Activation activation_of(size_t layer) const;
  std::vector<DenseLayer> dense_layers(const JoinedProduct& first) const;
  at::Tensor forward_by_operators(const JoinedProduct& first);
  bool has_few_units() const;

  std::vector<torch::nn::Linear> layers_;
};

using MLP = LayerHolder<MLPImpl>;

}  // namespace tessera
