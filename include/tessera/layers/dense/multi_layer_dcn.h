// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// The config of a MultiLayerDCN layer.
struct MultiLayerDCNOptions {
  /// The rank of each layer's matrix. See CrossOptions.
  int64_t projection_dim = 1;
  /// In [0, 1024]. With 0 layers, the output is x0.
  int64_t num_layers = 3;
  bool use_bias = true;
  Initializer kernel_initializer = initializers::TruncatedNormal{};
  Initializer bias_initializer = initializers::Zeros{};

  bool operator==(const MultiLayerDCNOptions&) const = default;

  TESSERA_FIELDS(
      projection_dim,
      num_layers,
      use_bias,
      kernel_initializer,
      bias_initializer)
};

// snippet: tests/docs/reference_layers_test.cpp MultiLayerDCNImpl
/// A stack of low-rank Cross layers over one x0.
///
///   x_0 = x0,  x_{i+1} = x0 * (x_i U_i V_i + bias_i) + x_i
///
///   MultiLayerDCN dcn(
///       MultiLayerDCNOptions{.projection_dim = 16, .num_layers = 2});
///   const auto crossed = dcn->forward(x0);  // the shape of x0
///
/// x0 may be a nest, whose inputs are joined along the last axis in the order of its entries.
/// An input of one row counts for all rows of the others. The inputs of a nest must not be
/// changed in place between forward() and backward().
///
/// In float32 on the CPU, one thread computes all layers for a block of rows. This needs
/// at least as many blocks as threads, or at least 8 blocks and half as many blocks as
/// threads. With fewer blocks, LibTorch's operators compute the result, and its last bits
/// differ. Large ranks are computed as MLP computes large layers.
///
/// Parameters:  those of Cross, as `cross_0.kernel_u`, `cross_0.kernel_v`,
///          `cross_0.bias`, `cross_1.kernel_u`, ...
/// Shapes:  x0 and the result [batch, ..., dim]; the inputs of a nest [batch, ..., n_i] or
///          [1, ..., n_i], and dim is the sum of n_i.
/// Errors:  c10::ValueError for options out of range; c10::ValueError or TypeError for
///          inputs that differ or don't fit the parameters.
/// Source:  tfrs.layers.feature_interaction.MultiLayerDCN.
/// Differs: There is no regularizer: add its term to the loss.
class MultiLayerDCNImpl
    : public LayerImpl<MultiLayerDCNImpl, MultiLayerDCNOptions> {
 public:
  static constexpr const char* kClassName = "MultiLayerDCN";

  explicit MultiLayerDCNImpl(MultiLayerDCNOptions options = {});

  at::Tensor forward(const Nest<at::Tensor>& x0);

  /// Keeps only the joined shape. So a layer that is built for a tensor can load the
  /// archive of a layer that is built for a nest, and the other way round.
  void build(const Nest<PartialShape>& input_shapes) override;

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;

  std::vector<Cross> layers_;
};

using MultiLayerDCN = LayerHolder<MultiLayerDCNImpl>;

}  // namespace tessera
