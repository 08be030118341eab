// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera {

/// Returns the per-id weights of `feature` as a float32 vector [nnz] in the order of its
/// values, or an undefined tensor if there are none. Gradients flow back to `weights`.
/// Errors:  c10::ValueError or TypeError naming the path, for weights of a dense feature or
///          of a sequence whose ids are not combined, and for weights of a wrong kind,
///          length or dtype, or at other positions than the ids.
at::Tensor flat_weights(
    const FeatureState& state,
    const Feature& feature,
    const std::optional<Feature>& weights);

}  // namespace tessera
