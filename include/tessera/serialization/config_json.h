// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/feature_config.h>
#include <tessera/initializer.h>
#include <tessera/nest.h>
#include <tessera/table_config.h>

#include <nlohmann/json_fwd.hpp>

namespace tessera {

/// Keys keep their order.
using Json = nlohmann::ordered_json;

// Configs as JSON and back. Reading refuses unknown keys and wrong types with a
// c10::ValueError that names the place; a missing key means the default.
// Of a callable (learning rate, initializer, rule) only the name is written, and
// reading gives a placeholder of that name.

Json to_json(const Initializer& initializer);
Initializer initializer_from_json(const Json& json);

Json to_json(const optim::OptimizerSpec& optimizer);
optim::OptimizerSpec optimizer_from_json(const Json& json);

Json to_json(const TableConfig& table);
TableConfig table_from_json(const Json& json);

/// Feature configs with the tables that they share:
///
///   {"tables": [{"name": "users", ...}],
///    "features": [{"path": ["user"], "table": 0, ...}]}
///
/// A path holds a string per map key and a number per list index; "table" is
/// the index of a table, so that features share it again after reading.
Json to_json(const Nest<FeatureConfig>& features);
Nest<FeatureConfig> features_from_json(const Json& json);

}  // namespace tessera
