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

/// The configuration of a layer that was saved, to build the same again; each
/// table has its optimizer.
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
/// Of the newest checkpoint in a directory.
Nest<FeatureConfig> saved_features(
    const std::string& directory,
    const Callables& callables = {});

}  // namespace tessera
