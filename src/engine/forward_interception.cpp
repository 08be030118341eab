// SPDX-License-Identifier: Apache-2.0
#include "src/engine/forward_interception.h"

#include <tessera/common/shorten.h>

#include <algorithm>
#include <utility>

#include "src/common/check.h"

namespace tessera {

namespace {

thread_local ForwardInterception* current_interception = nullptr;

}  // namespace

ForwardInterception::ForwardInterception(Handler handler)
    : handler_(std::move(handler)), previous_(current_interception) {
  current_interception = this;
}

ForwardInterception::~ForwardInterception() {
  current_interception = previous_;
}

Nest<at::Tensor> ForwardInterception::handle_lookup(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& structure,
    const Features& features,
    const Weights& weights) const {
  for (const TableState& table : state.tables) {
    TESSERA_CHECK_NOT_IMPLEMENTED(
        !table.config->quantization,
        "[embedding_lookup] a model that is exported must not call embedding_lookup() for the quantized table '{}'. Its rows are rounded in training and in an exported file, but not by embedding_lookup(). In this model, call forward() of the layer, or enqueue() and dequeue() of the engine.",
        shorten(table.name));
  }
  return handle(state, structure, features, weights);
}

ForwardInterception* ForwardInterception::current() {
  return current_interception;
}

void ForwardInterception::enqueue(Batch batch) {
  batches_.push_back(std::move(batch));
}

ForwardInterception::Batch ForwardInterception::dequeue(
    const EmbeddingState& state,
    const std::string& name,
    int64_t replica) {
  const auto found = std::ranges::find_if(batches_, [&](const Batch& batch) {
    return batch.state == &state && batch.name == name &&
        batch.replica == replica;
  });
  TESSERA_CHECK_VALUE(
      found != batches_.end(),
      "[dequeue] the forward() of a model that is exported must enqueue the batch '{}' of replica {} before it dequeues it, but it did not. Call enqueue() in forward(), or embedding_lookup().",
      shorten(name),
      replica);
  Batch batch = std::move(*found);
  batches_.erase(found);
  return batch;
}

}  // namespace tessera
