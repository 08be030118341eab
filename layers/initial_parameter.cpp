// SPDX-License-Identifier: Apache-2.0
#include "layers/initial_parameter.h"

#include <tessera/layers/layer.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <mutex>

namespace tessera {

namespace {

void remove_sizes(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.set_data(detail::unsized_parameter());
  }
}

}  // namespace

at::Tensor initial_parameter(
    const Initializer& initializer,
    std::string_view name,
    at::IntArrayRef shape) {
  const at::NoGradGuard no_grad;
  const auto seed = at::empty({1}, at::kLong).random_().item<int64_t>();
  at::Tensor parameter = at::empty(shape, at::kFloat);
  initialize_rows(
      initializer,
      static_cast<uint64_t>(seed),
      name,
      /*first_row=*/0,
      shape.size() == 1 ? parameter.unsqueeze(0) : parameter);
  return parameter;
}

torch::nn::Linear unsized_linear(bool use_bias) {
  const c10::InferenceMode normal(false);
  // Keeps the state of LibTorch's generator, because a Linear draws its initial values.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::unique_lock lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  lock.unlock();
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(use_bias));
  lock.lock();
  generator.set_state(state);
  remove_sizes(*linear);
  return linear;
}

torch::nn::LayerNorm unsized_layer_norm() {
  const c10::InferenceMode normal(false);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({1}));
  remove_sizes(*norm);
  return norm;
}

}  // namespace tessera
