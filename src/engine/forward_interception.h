// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// While an object of this class lives, TPUEmbedding::forward() and the lookups of an
/// EmbeddingEngine in this thread return the result of `handler` and look up no rows. An
/// export traces a model this way.
class ForwardInterception {
 public:
  using Handler = std::function<Nest<at::Tensor>(
      const EmbeddingState& state,
      const Nest<FeatureConfig>& structure,
      const Features& features,
      const Weights& weights)>;

  explicit ForwardInterception(Handler handler);
  ~ForwardInterception();
  ForwardInterception(const ForwardInterception&) = delete;
  ForwardInterception& operator=(const ForwardInterception&) = delete;

  /// The interception of this thread, or nullptr.
  static ForwardInterception* current();

  Nest<at::Tensor> handle(
      const EmbeddingState& state,
      const Nest<FeatureConfig>& structure,
      const Features& features,
      const Weights& weights) const {
    return handler_(state, structure, features, weights);
  }

  /// handle() for embedding_lookup(), which does not round rows.
  /// Errors:  c10::NotImplementedError naming a table with quantization.
  Nest<at::Tensor> handle_lookup(
      const EmbeddingState& state,
      const Nest<FeatureConfig>& structure,
      const Features& features,
      const Weights& weights) const;

  /// An engine's batch, between enqueue() and dequeue().
  struct Batch {
    const EmbeddingState* state = nullptr;
    std::string name = {};
    int64_t replica = 0;
    Features features = {};
    Weights weights = {};
  };
  void enqueue(Batch batch);
  /// Removes and returns the oldest batch of this engine, name and replica.
  /// Errors:  c10::ValueError if there is none.
  Batch dequeue(
      const EmbeddingState& state,
      const std::string& name,
      int64_t replica);

 private:
  Handler handler_;
  std::vector<Batch> batches_;
  ForwardInterception* previous_;
};

}  // namespace tessera
