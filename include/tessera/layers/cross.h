// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/activation.h>
#include <tessera/layers/layer.h>
#include <tessera/tables/initializer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <type_traits>

namespace tessera {

/// The config of a Cross layer.
struct CrossOptions {
  /// Unset: W is a full matrix [dim, dim]. Else it is U V, with U
  /// [dim, projection_dim] and V [projection_dim, dim]; dim / 4 keeps most of
  /// the accuracy.
  std::optional<int64_t> projection_dim = {};
  /// Added to W's diagonal, >= 0: steadier training, above all with a projection.
  double diag_scale = 0.0;
  bool use_bias = true;
  /// Applied to x W + bias, before diag_scale and the product with x0.
  Activation preactivation = Activation::kLinear;
  Initializer kernel_initializer = initializers::TruncatedNormal{};
  Initializer bias_initializer = initializers::Zeros{};

  bool operator==(const CrossOptions&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("projection_dim", self.projection_dim);
    visit("diag_scale", self.diag_scale);
    visit("use_bias", self.use_bias);
    visit("preactivation", self.preactivation);
    visit("kernel_initializer", self.kernel_initializer);
    visit("bias_initializer", self.bias_initializer);
  }
};
static_assert(std::is_aggregate_v<CrossOptions>);

/// One layer of a Deep & Cross Network: crosses of the features x0 with what the
/// layers before have made of them.
///
///   f(x0, x) = x0 * (preactivation(x W + bias) + diag_scale x) + x
///
///   Cross first(CrossOptions{.projection_dim = 16}), second(...);
///   auto x = first->forward(x0);  // x is x0
///   x = second->forward(x0, x);
///
/// Parameters:  `kernel` [dim, dim], or `kernel_u` and `kernel_v`; `bias` [dim].
///          They come with build() or the first forward(), random values by
///          torch::manual_seed(). Kernels are [in, out] as in Keras, which is a
///          torch::nn::Linear's transposed.
/// Shapes:  x0 and x [batch, ..., dim], the same; so is the result.
/// Errors:  c10::ValueError for options; c10::ValueError or TypeError for inputs
///          that differ or don't fit the parameters.
/// Source:  tfrs.layers.feature_interaction.Cross; Wang et al. 2020.
/// Differs: a regularizer is a term that the caller adds to the loss; x must
///          have x0's whole shape, as in Keras-RS.
class CrossImpl : public LayerImpl<CrossImpl, CrossOptions> {
 public:
  static constexpr const char* kClassName = "Cross";

  explicit CrossImpl(CrossOptions options = {});

  at::Tensor forward(const at::Tensor& x0, const at::Tensor& x = {});

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())})

 private:
  void make_parameters(const Nest<PartialShape>& input_shapes) override;

  at::Tensor kernel_;  // [dim, dim] or [dim, projection_dim]
  at::Tensor kernel_v_;  // [projection_dim, dim] or undefined
  at::Tensor bias_;  // [dim] or undefined
};

TORCH_MODULE(Cross);

}  // namespace tessera
