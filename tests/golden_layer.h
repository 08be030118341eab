// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/sgd.h>

#include "tests/golden_util.h"

namespace tessera::test {

/// Makes the layer of a golden lookup case and fills its tables.
inline TPUEmbedding golden_layer(
    const Json& test_case,
    const Strategy& strategy = Strategy::fused()) {
  std::map<std::string, TablePtr> tables;
  for (const auto& table : test_case.at("tables")) {
    const std::string name = table.at("name");
    tables[name] = make_table(
        {.name = name,
         .vocabulary_size = table.at("vocabulary_size"),
         .dim = table.at("dim"),
         .combiner =
             combiner_from_string(table.at("combiner").get<std::string>())});
  }
  Nest<FeatureConfig>::Map configs;
  for (const auto& feature : test_case.at("features")) {
    FeatureConfig config{
        .table = tables.at(feature.at("table")),
        .max_sequence_length = feature.at("max_sequence_length"),
        .validate_weights_and_indices = feature.value("validate", true)};
    if (feature.contains("output_shape") &&
        !feature.at("output_shape").is_null()) {
      config.output_shape =
          feature.at("output_shape").get<std::vector<int64_t>>();
    }
    configs.emplace_back(feature.at("name"), config);
  }
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = Nest<FeatureConfig>::map(configs),
      .optimizer = optim::SGD{},
      .strategy = strategy});
  // The layer has only the tables that a feature uses.
  const EmbeddingTables layer_tables = layer->embedding_tables();
  for (const auto& table : test_case.at("tables")) {
    for (const EmbeddingTables::Entry& entry : layer_tables) {
      if (entry.name == table.at("name").get<std::string>()) {
        entry.parameters.copy_(golden_rows(table.at("rows")));
      }
    }
  }
  return layer;
}

}  // namespace tessera::test
