// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// dropout(x) + addend at once, without a mask in memory. An undefined `addend` counts
/// as zeros. The seed comes from LibTorch's generator, so torch::manual_seed() determines
/// what is dropped, for any number of threads.
///
/// Shapes:  x, addend and the result [rows, dim].
/// Range:   probability in [0, 1). With 0, the result is x + addend.
at::Tensor dropout_sum(
    const at::Tensor& x,
    const at::Tensor& addend,
    double probability);

}  // namespace tessera
