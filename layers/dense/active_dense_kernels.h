// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/dense/kernels/dense_kernels.h"

namespace tessera {

/// Returns the dense kernels of the instruction set that active_kernels() chose.
/// Errors:  as for active_kernels().
const kernels::DenseKernelTable& active_dense_kernels();

}  // namespace tessera
