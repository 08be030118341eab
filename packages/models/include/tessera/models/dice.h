// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// The config of a Dice layer.
struct DiceOptions {
  /// The weight of a batch in the running statistics, in [0, 1].
  double momentum = 0.1;
  /// A number > 0 that is added to the variance.
  double epsilon = 1e-8;

  bool operator==(const DiceOptions&) const = default;

  TESSERA_FIELDS(momentum, epsilon)
};

// snippet: tests/docs/reference_models_test.cpp DiceImpl
/// An activation function that adapts to the distribution of its inputs. Its rectified
/// point is the mean of each column.
///
///   p    = sigmoid((x - mean) / sqrt(variance + epsilon))
///   f(x) = p x + (1 - p) alpha x
///
/// During training, mean and variance are those of the batch. In eval mode, they are
/// running means over the batches of the training. A batch with fewer than two rows has
/// no useful variance, so it uses the running statistics and does not change them.
///
///   torch::nn::Sequential tower(
///       torch::nn::Linear(8, 4),
///       Dice(DiceOptions{.momentum = 0.01}),
///       torch::nn::Linear(4, 1));
///   const auto logits = tower->forward(x);
///
/// Parameters:  `alpha` [dim], 0 at first. The buffers `running_mean` and `running_var`
///          [dim] are 0 and 1 at first. build() or the first forward() creates them.
/// Shapes:  x and the result [batch, ..., dim]. All dimensions but the last one count as
///          rows.
/// Errors:  c10::ValueError for options out of range; c10::ValueError or TypeError for an
///          input that does not fit the parameters.
/// Source:  Zhou et al. 2018.
class DiceImpl : public LayerImpl<DiceImpl, DiceOptions> {
 public:
  static constexpr const char* kClassName = "Dice";

  explicit DiceImpl(DiceOptions options = {});

  at::Tensor forward(const at::Tensor& x);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;

  at::Tensor alpha_;  // [dim]
  at::Tensor running_mean_;  // [dim]
  at::Tensor running_var_;  // [dim]
};

using Dice = LayerHolder<DiceImpl>;

}  // namespace tessera
