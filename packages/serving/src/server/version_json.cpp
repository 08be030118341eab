// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/version_json.h"

#include "packages/serving/src/server/http_message.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <utility>

namespace tessera::serving {

std::string version_text(
    const Version& version,
    const ReaderStatus& status,
    const std::vector<ScoreInputInfo>& score_inputs) {
  Json metrics = Json::object();
  for (const auto& [name, value] : version.metrics()) {
    metrics[name] = value;
  }
  Json features = Json::array();
  for (const FeatureInfo& feature : version.features()) {
    features.push_back(
        {{"name", feature.name},
         {"table", feature.table},
         {"dim", feature.dim},
         {"combiner", feature.combiner},
         {"sequence_length", feature.sequence_length}});
  }
  Json tables = Json::array();
  for (const TableInfo& table : version.tables()) {
    tables.push_back(
        {{"name", table.name},
         {"dim", table.dim},
         {"format", table.format},
         {"rows", table.rows},
         {"overlaid_rows", table.overlaid_rows},
         {"has_keys", table.has_keys},
         {"vocabulary_size", table.vocabulary_size}});
  }
  Json inputs = Json::array();
  for (const ScoreInputInfo& input : score_inputs) {
    inputs.push_back(
        {{"name", input.name},
         {"side", input.is_of_user ? "user" : "candidates"},
         {"values", input.width == 0 ? "ids" : "numbers"},
         {"width", input.width}});
  }
  return text_of(
      {{"version", version.number()},
       {"base", version.base()},
       {"step", version.step()},
       {"time", version.time()},
       {"age_seconds", age_of(version)},
       {"metrics", std::move(metrics)},
       {"newest", status.newest},
       {"pinned", status.is_pinned},
       {"taken", status.taken},
       {"problem", status.problem},
       {"inputs", std::move(inputs)},
       {"features", std::move(features)},
       {"tables", std::move(tables)}});
}

std::string health_text(const Version& version, const ReaderStatus& status) {
  Json health{{"status", "ok"}, {"version", version.number()}};
  if (!status.problem.empty()) {
    health["problem"] = status.problem;
  }
  return text_of(health);
}

double age_of(const Version& version) {
  const std::chrono::duration<double> now =
      std::chrono::system_clock::now().time_since_epoch();
  return now.count() - version.time();
}

}  // namespace tessera::serving
