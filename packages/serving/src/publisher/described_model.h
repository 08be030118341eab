// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/format/version_file.h"
#include "src/engine/embedding_state.h"
#include "src/tables/table_state.h"

#include <string>

namespace tessera::serving {

/// `prefix` is that of the feature's Part.
/// Errors:  c10::NotImplementedError for a feature that Version can't look up.
FeatureFile describe_feature(
    const FeatureState& feature,
    const std::string& prefix,
    const std::string& table);

/// Errors:  c10::ValueError if the table can't be stored in this format.
TableFile describe_table(
    const TableState& table,
    const std::string& name,
    StoredFormat format);

}  // namespace tessera::serving
