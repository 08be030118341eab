// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <string>

namespace tessera {

/// One line per table, and one with the totals and `strategy`. After these come lines about
/// keys, and about tables whose accumulators have hardly grown.
std::string summary_of(
    const EmbeddingState& state,
    const std::string& strategy);

}  // namespace tessera
