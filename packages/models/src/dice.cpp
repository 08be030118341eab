// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/dice.h>

#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()

#include "optim/moving_average.h"
#include "src/common/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>
#include <utility>

namespace tessera {

DiceImpl::DiceImpl(DiceOptions options) : LayerImpl(std::move(options)) {
  const DiceOptions& checked = this->options();
  TESSERA_CHECK_VALUE(
      checked.momentum >= 0.0 && checked.momentum <= 1.0,
      "[Dice] momentum must be in [0, 1], but got {}. Set it to the weight of a batch in the running statistics.",
      checked.momentum);
  TESSERA_CHECK_VALUE(
      checked.epsilon > 0.0 && std::isfinite(checked.epsilon),
      "[Dice] epsilon must be > 0 and finite, but got {}. Set it to a small number such as 1e-8.",
      checked.epsilon);
  declare();
}

Nest<PartialShape> DiceImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  return check_rows(input_shapes, kClassName);
}

void DiceImpl::declare_parameters() {
  alpha_ = register_parameter("alpha", detail::unsized_parameter());
  running_mean_ = register_buffer("running_mean", detail::unsized_parameter());
  running_var_ = register_buffer("running_var", detail::unsized_parameter());
}

void DiceImpl::make_parameters(const Nest<PartialShape>& input_shapes) {
  const int64_t dim = known_dim(input_shapes.leaf(), kClassName);
  detail::adopt_values(alpha_, at::zeros({dim}, at::kFloat));
  detail::adopt_values(running_mean_, at::zeros({dim}, at::kFloat));
  detail::adopt_values(running_var_, at::ones({dim}, at::kFloat));
}

at::Tensor DiceImpl::forward(const at::Tensor& x) {
  check_floating(x, "x", kClassName);
  build_on_first_call(x);
  check_fits(x, alpha_, kClassName);

  at::Tensor mean = running_mean_;
  at::Tensor variance = running_var_;
  const int64_t rows = x.numel() / x.size(-1);
  if (is_training() && rows >= 2) {
    std::tie(variance, mean) = at::var_mean(
        x.reshape({rows, x.size(-1)}), /*dim=*/0, /*unbiased=*/false);
    const at::NoGradGuard no_grad;
    const double momentum = options().momentum;
    // As in torch::nn::BatchNorm1d, the running variance is unbiased.
    const double unbiased =
        static_cast<double>(rows) / static_cast<double>(rows - 1);
    // In a column that hardly changes, a mean that stops short of the values would make
    // x - mean larger than the deviation.
    optim::move_mean(
        running_mean_, 1.0 - momentum, mean.detach() - running_mean_);
    running_var_.mul_(1.0 - momentum)
        .add_(variance.detach(), momentum * unbiased);
  }
  const at::Tensor p =
      at::sigmoid((x - mean) * (variance + options().epsilon).rsqrt());
  // p x + (1 - p) alpha x
  return x * (alpha_ + p * (1 - alpha_));
}

}  // namespace tessera
