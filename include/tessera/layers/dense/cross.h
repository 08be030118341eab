// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/dense/activation.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <tessera/tables/initializer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// The config of a Cross layer.
struct CrossOptions {
  /// If unset, W is a full matrix [dim, dim]. Otherwise W = U V, with
  /// U [dim, projection_dim] and V [projection_dim, dim]. A value of dim / 4 keeps most
  /// of the accuracy.
  std::optional<int64_t> projection_dim = {};
  /// The number that is added to W's diagonal, >= 0. It makes training more stable, above
  /// all with a projection.
  double diag_scale = 0.0;
  bool use_bias = true;
  /// The function that is applied to x W + bias, before diag_scale x is added.
  Activation preactivation = Activation::kLinear;
  Initializer kernel_initializer = initializers::TruncatedNormal{};
  Initializer bias_initializer = initializers::Zeros{};

  bool operator==(const CrossOptions&) const = default;

  TESSERA_FIELDS(
      projection_dim,
      diag_scale,
      use_bias,
      preactivation,
      kernel_initializer,
      bias_initializer)
};

// snippet: tests/docs/reference_layers_test.cpp CrossImpl
/// One layer of a Deep & Cross Network. It multiplies the input features x0 with a linear
/// map of the previous layer's output x.
///
///   f(x0, x) = x0 * (preactivation(x W + bias) + diag_scale x) + x
///
///   Cross first(CrossOptions{.projection_dim = 16});
///   Cross second(CrossOptions{.projection_dim = 16});
///   auto x = first->forward(x0);  // x is x0
///   x = second->forward(x0, x);
///
/// x0 may be a nest, whose inputs are joined along the last axis. An input may have one row
/// beside inputs of many rows, such as the vector of a user beside those of candidates. It
/// counts for all rows, and if inputs have two dimensions, its part of x W is computed once.
///
/// Parameters:  `kernel` [dim, dim], or `kernel_u` and `kernel_v`; `bias` [dim].
///          build() or the first forward() creates them. torch::manual_seed() sets the
///          seed of random values. Kernels are [in, out] as in Keras: the transpose of
///          torch::nn::Linear's weight.
/// Shapes:  x0, x and the result [batch, ..., dim]; the inputs of a nest [batch, ..., n_i]
///          or [1, ..., n_i], and dim is the sum of n_i.
/// Errors:  c10::ValueError for options out of range; c10::ValueError or TypeError for
///          inputs that differ or don't fit the parameters.
/// Source:  tfrs.layers.feature_interaction.Cross; Wang et al. 2020.
/// Differs: There is no regularizer: add its term to the loss. x must have the whole
///          shape of x0, as in Keras-RS.
class CrossImpl : public LayerImpl<CrossImpl, CrossOptions> {
 public:
  static constexpr const char* kClassName = "Cross";

  explicit CrossImpl(CrossOptions options = {});

  at::Tensor forward(const Nest<at::Tensor>& x0, const at::Tensor& x = {});

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())})

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;

  at::Tensor kernel_;  // [dim, dim] or [dim, projection_dim]
  at::Tensor kernel_v_;  // [projection_dim, dim] or undefined
  at::Tensor bias_;  // [dim] or undefined
};

using Cross = LayerHolder<CrossImpl>;

}  // namespace tessera
