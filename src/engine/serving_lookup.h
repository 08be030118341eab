// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// serving_embedding_lookup() in the tables of a layer or an engine, without gradients.
/// If a feature has the same path and config as a feature of `state`, it must also have
/// the number of ragged rows that the batches of `state` have fixed.
/// Errors:  as serving_embedding_lookup().
Nest<at::Tensor> lookup_for_serving(
    const EmbeddingState& state,
    const Features& features,
    const Weights& weights,
    const Nest<FeatureConfig>& feature_config);

}  // namespace tessera
