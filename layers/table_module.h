// SPDX-License-Identifier: Apache-2.0
// Common functions for the modules that hold embedding tables: TPUEmbedding and
// EmbeddingEngineModule.
#pragma once

#include "src/engine/embedding_state.h"

#include <tessera/engine/checkpoint_options.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>

namespace tessera {

/// The tables of a module, and the features that look into them.
struct TableModule {
  const EmbeddingState* state = nullptr;
  const Nest<FeatureConfig>* features = nullptr;

  /// nullopt for a module that holds no tables itself.
  static std::optional<TableModule> of(const torch::nn::Module& module);
  /// The functions of the same name of a module that holds tables itself, but their errors
  /// begin with `where`, the function that the user called.
  static void save_checkpoint(
      torch::nn::Module& module,
      const std::string& directory,
      const CheckpointOptions& options,
      const std::string& where);
  static void load_checkpoint(
      torch::nn::Module& module,
      const std::string& directory,
      const LoadOptions& options,
      const std::string& where);
  static void update_embedding_table(
      torch::nn::Module& module,
      const std::string& name,
      const at::Tensor& values);
  /// Waits until the lookups of the module that run in the background are done.
  static void wait_for_lookups(const torch::nn::Module& module);
};

/// One line per table, and a last line with the totals and `strategy`.
std::string summary_of(
    const EmbeddingState& state,
    const std::string& strategy);

}  // namespace tessera
