// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/lookup.h"
#include "src/features/id_bags.h"

#include <ATen/core/Tensor.h>

namespace tessera {

/// Looks up one feature with stock LibTorch operators and returns its activation
/// [bags, dim]. The activation is differentiable with respect to the table's rows
/// (float32) and to `weights`. `weights` is undefined, or has one weight for each value
/// that the caller has passed.
at::Tensor lookup_by_operators(
    const LookupTable& table,
    const IdBags& bags,
    const at::Tensor& weights,
    bool sparse_gradients);

/// Like lookup_by_operators(), but pads all bags to the longest one.
at::Tensor lookup_in_grid(
    const LookupTable& table,
    const IdBags& bags,
    const at::Tensor& weights);

/// sum [bags, dim] / total [bags] for kMean, and sum / sqrt(total) for kSqrtn. The result
/// is 0 where total is 0.
at::Tensor divide_by_total(
    const at::Tensor& sum,
    const at::Tensor& total,
    Combiner combiner);

}  // namespace tessera
