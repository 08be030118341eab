// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/id_bags.h"
#include "src/kernels/kernels.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// What a feature looks up.
struct LookupTable {
  at::Tensor rows = {};  // [vocab, dim], contiguous, of a TableConfig's dtype
  kernels::Buckets buckets = {};  // step 0: rows are not rounded
};

/// Activations of checked ids, one tensor with its own storage per feature.
/// `bags` must not hold kZeroRow; `tables` has one per feature.
std::vector<at::Tensor> look_up(
    const std::vector<IdBags>& bags,
    const std::vector<LookupTable>& tables);

}  // namespace tessera
