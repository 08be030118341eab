// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serialization/config_json.h>

#include <c10/util/FunctionRef.h>

#include <vector>

namespace tessera {

/// features_from_json(), where `complete` may change the tables before they are
/// checked and made.
Nest<FeatureConfig> features_from_json(
    const Json& json,
    c10::function_ref<void(std::vector<TableConfig>&)> complete);

}  // namespace tessera
