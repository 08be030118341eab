// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera {

/// The per-id weights of `feature` as one float32 vector [nnz] in the order of
/// its values, or an undefined tensor. Differentiable.
/// Errors:  c10::ValueError or TypeError naming the path: weights for a dense
///          or sequence feature, of another kind, length or dtype.
at::Tensor flat_weights(
    const FeatureState& state,
    const Feature& feature,
    const std::optional<Feature>& weights);

}  // namespace tessera
