// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tables/initializer.h>

#include <ATen/core/Tensor.h>

#include <string_view>

namespace tessera {

/// A new float32 matrix or vector. LibTorch's generator gives the seed, so that
/// torch::manual_seed() decides; the values are the same for any number of
/// threads. A callable's errors name the parameter.
at::Tensor initial_parameter(
    const Initializer& initializer,
    std::string_view name,
    at::IntArrayRef shape);

}  // namespace tessera
