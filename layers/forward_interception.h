// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>

#include "src/embedding_state.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera {

/// While one lives, it answers every TPUEmbedding::forward() of its thread in
/// place of the lookup: how an export sees into a model.
class ForwardInterception {
 public:
  using Answer = std::function<Nest<at::Tensor>(
      TPUEmbeddingImpl& layer,
      const Features& features,
      const Weights& weights)>;

  explicit ForwardInterception(Answer answer);
  ~ForwardInterception();
  ForwardInterception(const ForwardInterception&) = delete;
  ForwardInterception& operator=(const ForwardInterception&) = delete;

  /// nullptr when there is none.
  static const Answer* current();

  static const EmbeddingState& state_of(const TPUEmbeddingImpl& layer);

 private:
  Answer answer_;
  const Answer* previous_;
};

}  // namespace tessera
