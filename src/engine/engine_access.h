// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <tessera/engine/embedding_engine.h>

namespace tessera {

/// Gives packages access to the state of an EmbeddingEngine.
struct EngineAccess {
  /// The engine's own state, not a copy. Updates change it.
  static const EmbeddingState& state(const EmbeddingEngine& engine);
  /// Whether this thread has dequeued a training batch, but has neither passed its
  /// gradients to apply_gradients() nor dropped it.
  static bool has_batch_without_gradients(const EmbeddingEngine& engine);
  static bool is_shut_down(const EmbeddingEngine& engine);
};

}  // namespace tessera
