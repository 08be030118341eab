// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::training {

/// Checks that the gradients of the parameters that have one are finite.
/// Errors:  c10::ValueError naming the parameters. The message contains `unchanged`, a
///          sentence such as "Nothing was changed.".
void check_gradients(
    const std::vector<at::Tensor>& parameters,
    const char* unchanged);

}  // namespace tessera::training
