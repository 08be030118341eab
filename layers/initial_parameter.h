// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tables/initializer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string_view>

namespace tessera {

/// A new float32 matrix or vector with initial values. The seed comes from LibTorch's
/// generator, so torch::manual_seed() determines the values. They do not depend on the
/// number of threads. Errors of a callable contain `name`.
at::Tensor initial_parameter(
    const Initializer& initializer,
    std::string_view name,
    at::IntArrayRef shape);

/// A Linear whose parameters have no size yet. The state of LibTorch's generator does not
/// change.
torch::nn::Linear unsized_linear(bool use_bias = true);
torch::nn::LayerNorm unsized_layer_norm();

}  // namespace tessera
