// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/embedding_engine.h>

namespace tessera {

/// Tells packages what state an EmbeddingEngine is in.
struct EngineAccess {
  /// Whether this thread has dequeued a training batch, but has neither passed its
  /// gradients to apply_gradients() nor dropped it.
  static bool has_batch_without_gradients(const EmbeddingEngine& engine);
  static bool is_shut_down(const EmbeddingEngine& engine);
};

}  // namespace tessera
