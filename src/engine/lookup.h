// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/id_bags.h"
#include "src/kernels/kernels.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// The table of a feature, as a lookup reads it.
struct LookupTable {
  at::Tensor rows = {};  // [vocab, dim], contiguous, of a TableConfig's dtype
  kernels::Buckets buckets = {};  // step 0: rows are not rounded
};

/// Looks up checked ids and returns one activation with its own storage per feature.
/// `bags` must not hold kZeroRow. `tables` has one entry per feature.
std::vector<at::Tensor> lookup(
    const std::vector<IdBags>& bags,
    const std::vector<LookupTable>& tables);

}  // namespace tessera
