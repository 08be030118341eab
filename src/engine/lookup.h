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

/// The rows [nnz, dim] that `bags` looks up, with zeros for kZeroRow. `found` has the same
/// ids without kZeroRow, as rows of `table`.
at::Tensor gather_rows(
    const IdBags& bags,
    const IdBags& found,
    const LookupTable& table);

/// The gradient of the per-id weights. x are the rows of one bag, G is the gradient of
/// its activation, and s is the combiner's 1 / denominator:
///
///   sum    dw_i = <G, x_i>
///   mean   dw_i = s <G, x_i> - s^2 sum_j w_j <G, x_j>
///   sqrtn  dw_i = s <G, x_i> - w_i s^3 sum_j w_j <G, x_j>
///
/// Weights of dropped ids, and of bags with a zero denominator, get 0.
/// Shapes:  rows [nnz, dim], gradient [bags, dim], result [count], in the order
///          of the caller's values.
at::Tensor weight_gradient(
    const IdBags& bags,
    const at::Tensor& rows,
    const at::Tensor& gradient,
    int64_t count);

}  // namespace tessera
