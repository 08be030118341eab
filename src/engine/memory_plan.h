// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/memory_plan.h>

#include "src/engine/embedding_state.h"

#include <string>

namespace tessera {

/// What the tables of a state need, whose LocalRows are set. They need not exist yet.
/// `batch_size` 0: MemoryPlan::step is 0.
MemoryPlan plan_memory(
    const EmbeddingState& state,
    WithSlots with_slots,
    int64_t batch_size = 0);

/// Errors:  c10::ValueError beginning with `where`, if the plan exceeds its limit. Warns if
///          only the lazy tables would exceed it.
void check_memory(const MemoryPlan& plan, const std::string& where);

}  // namespace tessera
