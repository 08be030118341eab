// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/embedding_state.h"

#include <tessera/feature.h>
#include <tessera/feature_config.h>
#include <tessera/nest.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// While it lives, TPUEmbedding::forward() and the lookups of an EmbeddingEngine
/// give what `answer` gives, in this thread, in place of the lookup: how an export
/// sees into a model.
class ForwardInterception {
 public:
  using Answer = std::function<Nest<at::Tensor>(
      const EmbeddingState& state,
      const Nest<FeatureConfig>& structure,
      const Features& features,
      const Weights& weights)>;

  explicit ForwardInterception(Answer answer);
  ~ForwardInterception();
  ForwardInterception(const ForwardInterception&) = delete;
  ForwardInterception& operator=(const ForwardInterception&) = delete;

  /// nullptr when there is none.
  static ForwardInterception* current();

  Nest<at::Tensor> answer(
      const EmbeddingState& state,
      const Nest<FeatureConfig>& structure,
      const Features& features,
      const Weights& weights) const {
    return answer_(state, structure, features, weights);
  }

  /// An engine's batch, between enqueue() and dequeue().
  struct Batch {
    const EmbeddingState* state = nullptr;
    std::string name = {};
    int64_t replica = 0;
    Features features = {};
    Weights weights = {};
  };
  void enqueue(Batch batch);
  /// The oldest of this name.
  /// Errors:  c10::ValueError when there is none.
  Batch dequeue(
      const EmbeddingState& state,
      const std::string& name,
      int64_t replica);

 private:
  Answer answer_;
  std::vector<Batch> batches_;
  ForwardInterception* previous_;
};

}  // namespace tessera
