// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <tessera/engine/embedding_engine.h>

#include <c10/util/FunctionRef.h>

namespace tessera {

/// Gives layers access to the state of an EmbeddingEngine.
struct EngineAccess {
  /// The engine's own state, not a copy. Updates change it.
  static const EmbeddingState& state(const EmbeddingEngine& engine);
  /// Calls `read` while neither lookups nor updates run. It must not call the engine.
  static void read(
      const EmbeddingEngine& engine,
      c10::function_ref<void(const EmbeddingState&)> read);
  /// The same for a function that changes the state.
  static void change(
      EmbeddingEngine& engine,
      c10::function_ref<void(EmbeddingState&)> change);
  /// Whether this thread has dequeued a training batch, but has neither passed its
  /// gradients to apply_gradients() nor dropped it.
  static bool has_batch_without_gradients(const EmbeddingEngine& engine);
  static bool is_shut_down(const EmbeddingEngine& engine);
};

}  // namespace tessera
