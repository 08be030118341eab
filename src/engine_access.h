// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/embedding_state.h"

#include <tessera/embedding_engine.h>

#include <c10/util/FunctionRef.h>

namespace tessera {

/// What the layers see of an EmbeddingEngine.
struct EngineAccess {
  /// It changes with the engine's updates.
  static const EmbeddingState& state(const EmbeddingEngine& engine);
  /// While neither lookups nor updates run. `read` must not call the engine.
  static void read(
      const EmbeddingEngine& engine,
      c10::function_ref<void(const EmbeddingState&)> read);
};

}  // namespace tessera
