// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <string>

namespace tessera {

/// A line for each table whose accumulators have hardly grown in 100 updates or more, for
/// summary(). It reads at most 4096 rows of each table.
std::string resting_tables(const EmbeddingState& state);

}  // namespace tessera
