// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/json_value.h>
#include <tessera/engine/embedding_engine.h>
#include <tessera/serialization/config_json.h>
#include <tessera/serialization/config_values.h>

#include "optim/row_update.h"
#include "src/engine/embedding_state.h"
#include "src/features/output_shapes.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace tessera {

namespace {

// Returns the greatest common divisor of the features' numbers of bags, or nullopt while
// some are not known.
std::optional<int64_t> common_batch_size(const EmbeddingState& state) {
  int64_t size = 0;
  for (const FeatureState& feature : state.features) {
    const std::optional<int64_t> bags = known_bags(feature);
    if (!bags) {
      return std::nullopt;
    }
    size = std::gcd(size, *bags);
  }
  return size;
}

// null if there is no value.
template <class T>
Json json_of(const std::optional<T>& value) {
  return JsonValue<std::optional<T>>::write(value);
}

// Counts the features of a table. A feature with n * batch_size bags counts as n.
Json count_features(
    const EmbeddingState& state,
    size_t table,
    const std::optional<int64_t>& batch_size) {
  int64_t count = 0;
  for (const FeatureState& feature : state.features) {
    if (feature.table == table && batch_size.value_or(0) > 0) {
      count += *known_bags(feature) / *batch_size;
    }
  }
  return batch_size ? Json(count) : Json(nullptr);
}

// As upstream, only a schedule or callable has a learning rate tag, because the compiled
// program holds constants.
bool has_rate_tag(const TableState& table) {
  return table.optimizer &&
      !optim::learning_rate_of(*table.optimizer).is_constant();
}

Json table_json(const TableState& table) {
  Json json = to_json(*table.config);
  json["name"] = table.name;
  json["optimizer"] = table.optimizer ? to_json(*table.optimizer) : Json();
  json["slots"] = Json::array();
  for (const Slot& slot : table.slots) {
    json["slots"].push_back(slot.name);
  }
  return json;
}

Json config_of(
    const EmbeddingState& state,
    const EmbeddingEngineOptions& options) {
  const std::optional<int64_t> batch_size = common_batch_size(state);
  std::vector<optim::LearningRate> rates;
  for (const TableState& table : state.tables) {
    if (has_rate_tag(table)) {
      rates.push_back(optim::learning_rate_of(*table.optimizer));
    }
  }
  const std::vector<int64_t> tags = optim::learning_rate_tags(rates);
  auto tag = tags.begin();
  Json tables = Json::array();
  for (size_t i = 0; i < state.tables.size(); ++i) {
    Json table = table_json(state.tables[i]);
    table["learning_rate_tag"] =
        has_rate_tag(state.tables[i]) ? Json(*tag++) : Json();
    table["num_features"] = count_features(state, i, batch_size);
    tables.push_back(std::move(table));
  }
  Json features = Json::array();
  for (const FeatureState& feature : state.features) {
    features.push_back(
        {{"path", feature.path},
         {"table", feature.table},
         {"max_sequence_length", feature.config.max_sequence_length},
         {"validate_weights_and_indices",
          feature.config.validate_weights_and_indices},
         {"out_of_range", to_string(feature.config.out_of_range)},
         {"output_shape", json_of(feature.output_shape)}});
  }
  const bool is_pipelined = options.pipelining == Pipelining::kOn;
  return {
      {"batch_size", json_of(batch_size)},
      {"replicas", options.replicas},
      {"pipelining", is_pipelined ? "on" : "off"},
      {"learning_rate_tags", tags.empty() ? 0 : std::ranges::max(tags) + 1},
      {"tables", std::move(tables)},
      {"features", std::move(features)}};
}

}  // namespace

Json EmbeddingEngine::config() const {
  Json json;
  visit_state(
      [&](const EmbeddingState& state) { json = config_of(state, options()); });
  return json;
}

}  // namespace tessera
