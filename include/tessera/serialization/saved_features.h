// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/serialization/callables.h>

#include <string>

namespace torch::serialize {
class InputArchive;
}  // namespace torch::serialize

namespace tessera {

/// Reads the configuration of a saved layer, so that the same layer can be built again.
/// Each table has its optimizer.
///
///   TPUEmbedding layer(TPUEmbeddingOptions{
///       .features = saved_features(
///           "run/checkpoints",
///           {.learning_rates = {{"warm_up", LearningRate("warm_up", rate)}}})});
///   layer->load_checkpoint("run/checkpoints");
///
/// Errors:  c10::ValueError listing every function that `callables` lacks.
Nest<FeatureConfig> saved_features(
    torch::serialize::InputArchive& archive,
    const Callables& callables = {});
/// Reads the configuration from the newest checkpoint in a directory.
/// Errors:  also c10::ValueError if there is no checkpoint, or the newest is damaged.
Nest<FeatureConfig> saved_features(
    const std::string& directory,
    const Callables& callables = {});

}  // namespace tessera
