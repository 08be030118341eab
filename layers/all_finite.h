// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// Returns true if no value of the tensor is NaN or infinite. The tensor may be sparse.
bool all_finite(const at::Tensor& tensor);

}  // namespace tessera
