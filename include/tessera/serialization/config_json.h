// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/tables/initializer.h>
#include <tessera/tables/table_config.h>

namespace tessera {

/// A config as JSON. Of a callable (learning rate, initializer, rule, slot
/// creation) only the name is written.
Json to_json(const Initializer& initializer);
/// What to_json() wrote, with a placeholder of its name for each callable; a
/// missing key means the default.
/// Errors:  c10::ValueError naming the place of an unknown key or a wrong type.
Initializer initializer_from_json(const Json& json);

/// As that of an Initializer.
Json to_json(const optim::OptimizerSpec& optimizer);
/// As initializer_from_json().
optim::OptimizerSpec optimizer_from_json(const Json& json);

/// As that of an Initializer.
Json to_json(const TableConfig& table);
/// As initializer_from_json().
TableConfig table_from_json(const Json& json);

/// Feature configs with the tables that they share:
///
///   {"tables": [{"name": "users", ...}],
///    "features": [{"path": ["user"], "table": 0, ...}]}
///
/// A path holds a string per map key and a number per list index; "table" is
/// the index of a table, so that features share it again after reading.
Json to_json(const Nest<FeatureConfig>& features);
/// As initializer_from_json().
Nest<FeatureConfig> features_from_json(const Json& json);

}  // namespace tessera
