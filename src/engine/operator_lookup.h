// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/lookup.h"
#include "src/features/id_bags.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// The activation [bags, dim] of one feature by stock LibTorch operators,
/// differentiable in the table's rows (float32) and in `weights`, which are
/// those of the caller's values, or undefined.
at::Tensor look_up_by_operators(
    const LookupTable& table,
    const IdBags& bags,
    const at::Tensor& weights,
    bool sparse_gradients);

// Its steps:

/// Rounded values; the gradient passes as if there were no rounding.
at::Tensor round_to_buckets(
    const at::Tensor& rows,
    const kernels::Buckets& buckets);

/// [nnz], ones when `weights` is undefined. Differentiable.
at::Tensor weight_per_id(const IdBags& bags, const at::Tensor& weights);

/// sum [bags, dim] / total [bags] for kMean, / sqrt(total) for kSqrtn; zeros
/// where total is 0.
at::Tensor divide_by_total(
    const at::Tensor& sum,
    const at::Tensor& total,
    Combiner combiner);

}  // namespace tessera
