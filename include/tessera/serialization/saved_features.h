// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/feature_config.h>
#include <tessera/nest.h>

#include <map>
#include <string>
#include <type_traits>

namespace torch::serialize {
class InputArchive;
}  // namespace torch::serialize

namespace tessera {

/// The user's functions, by the names that stand for them in what was saved.
struct Callables {
  std::map<std::string, optim::LearningRate> learning_rates = {};
  std::map<std::string, Initializer> initializers = {};
  std::map<std::string, optim::CustomRule> rules = {};
  std::map<std::string, optim::SlotCreation> slot_creations = {};
};
static_assert(std::is_aggregate_v<Callables>);

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
