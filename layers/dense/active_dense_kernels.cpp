// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/active_dense_kernels.h"

#include "src/common/active_kernels.h"
#include "src/kernels/targets.h"

namespace tessera {

const kernels::DenseKernelTable& active_dense_kernels() {
  static const kernels::DenseKernelTable& table = *kernels::find_table(
      kernels::available_dense_kernels(), active_kernels().isa);
  return table;
}

}  // namespace tessera
