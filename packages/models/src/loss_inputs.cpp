// SPDX-License-Identifier: Apache-2.0
#include "packages/models/src/loss_inputs.h"

#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_sigmoid.h>

#include <algorithm>
#include <cmath>

namespace tessera {

void check_temperature(double temperature, const std::string& where) {
  TESSERA_CHECK_VALUE(
      std::isfinite(temperature) && temperature > 0.0,
      "{} temperature must be > 0 and finite, but got {}. Set it to 1 to leave the scores as they are.",
      where,
      temperature);
}

void check_loss_scores(
    const at::Tensor& scores,
    const char* name,
    int64_t dim,
    const char* shape,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      scores.defined() && scores.layout() == at::kStrided &&
          scores.dim() == dim,
      "{} {} must be a dense tensor of shape {}, but got {}. Pass the scores of a batch in this shape.",
      where,
      name,
      shape,
      describe(scores));
  check_loss_floats(scores, name, where);
}

void check_loss_floats(
    const at::Tensor& values,
    const char* name,
    const std::string& where) {
  TESSERA_CHECK_TYPE(
      at::isFloatingType(values.scalar_type()),
      "{} {} must be floats, but got {}. Convert them with to(torch::kFloat).",
      where,
      name,
      describe(values));
}

void check_loss_values(
    const at::Tensor& values,
    const char* name,
    const at::Tensor& scores,
    at::IntArrayRef shape,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      values.defined() && values.layout() == at::kStrided &&
          values.sizes() == shape,
      "{} {} must be a dense tensor of shape {}, but got {}. Pass values that fit the batch, {}.",
      where,
      name,
      shape,
      describe(values),
      describe(scores));
  TESSERA_CHECK_VALUE(
      values.device() == scores.device(),
      "{} {} must be on the device of the batch, {}, but is on {}. Move it with to().",
      where,
      name,
      scores.device(),
      values.device());
}

void check_loss_weights(
    const at::Tensor& weights,
    const char* name,
    const at::Tensor& scores,
    at::IntArrayRef shape,
    const std::string& where) {
  check_loss_values(weights, name, scores, shape, where);
  check_loss_floats(weights, name, where);
  TESSERA_CHECK_VALUE(
      at::isfinite(weights).logical_and(weights >= 0.0).all().item<bool>(),
      "{} {} must be finite and >= 0, but some are not. Use 0 to leave an example out.",
      where,
      name);
}

at::Tensor stable_softplus(const at::Tensor& x) {
  return -at::log_sigmoid(-x);
}

at::Tensor reduce_losses(
    const at::Tensor& losses,
    const at::Tensor& weights,
    LossReduction reduction) {
  const at::Tensor total =
      (weights.defined()
           ? losses * weights.to(losses.scalar_type()).expand_as(losses)
           : losses)
          .sum();
  return reduction == LossReduction::kSum
      ? total
      : total / static_cast<double>(std::max<int64_t>(1, losses.numel()));
}

}  // namespace tessera
