// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::training {

/// Checks that the gradients of parameters, as far as they have some, are finite.
/// Errors:  c10::ValueError naming the parameters, and saying what is `unchanged`.
void check_gradients(
    const std::vector<at::Tensor>& parameters,
    const char* unchanged);

}  // namespace tessera::training
