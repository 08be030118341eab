// SPDX-License-Identifier: Apache-2.0
// What modules that hold embedding tables have in common: a TPUEmbedding and an
// EmbeddingEngineModule.
#pragma once

#include "src/embedding_state.h"

#include <tessera/feature_config.h>
#include <tessera/nest.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>

namespace tessera {

/// The tables of a module, and the features that look into them.
struct TableModule {
  const EmbeddingState* state = nullptr;
  const Nest<FeatureConfig>* features = nullptr;

  /// Nothing for a module that holds no tables itself.
  static std::optional<TableModule> of(const torch::nn::Module& module);
  /// Until no lookup of the module runs in the background.
  static void wait_for_lookups(const torch::nn::Module& module);
};

/// A line per table, and a last one that ends with `strategy`.
std::string summary_of(
    const EmbeddingState& state,
    const std::string& strategy);

}  // namespace tessera
