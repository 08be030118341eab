// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/tables/initializer.h>
#include <tessera/tables/table_config.h>

namespace tessera {

/// Writes a config as JSON. A callable (learning rate, initializer, rule, slot creation)
/// is written as its name.
Json to_json(const Initializer& initializer);
/// Reads what to_json() has written. Each callable becomes a placeholder of its name. A
/// missing key means the default.
/// Errors:  c10::ValueError naming the place of an unknown key or a wrong type.
Initializer initializer_from_json(const Json& json);

/// Writes an optimizer as JSON, by the rules for an Initializer.
Json to_json(const optim::OptimizerSpec& optimizer);
/// Reads an optimizer, by the rules of initializer_from_json().
optim::OptimizerSpec optimizer_from_json(const Json& json);

/// Writes a table's config as JSON, by the rules for an Initializer.
Json to_json(const TableConfig& table);
/// Reads a table's config, by the rules of initializer_from_json().
TableConfig table_from_json(const Json& json);

/// Writes feature configs as JSON, with the tables that they share:
///
///   {"tables": [{"name": "users", ...}],
///    "features": [{"path": ["user"], "table": 0, ...}]}
///
/// A path has a string for each map key and a number for each list index. "table" is the
/// index of a table, so that features share it again after reading.
Json to_json(const Nest<FeatureConfig>& features);
/// Reads feature configs, by the rules of initializer_from_json().
Nest<FeatureConfig> features_from_json(const Json& json);

}  // namespace tessera
