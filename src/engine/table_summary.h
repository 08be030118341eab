// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <string>

namespace tessera {

/// One line per table, and a last line with the totals and `strategy`.
std::string summary_of(
    const EmbeddingState& state,
    const std::string& strategy);

}  // namespace tessera
