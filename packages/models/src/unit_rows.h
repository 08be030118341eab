// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// Rows divided by their lengths. A row of zeros stays, and gets no gradient.
at::Tensor unit_rows(const at::Tensor& rows);

}  // namespace tessera
