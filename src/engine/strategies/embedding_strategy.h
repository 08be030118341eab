// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"
#include "src/features/batch.h"

#include <tessera/engine/strategy.h>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

class PendingGradients;
class TableStore;

/// Looks up batches and decides how the tables learn.
class EmbeddingStrategy {
 public:
  virtual ~EmbeddingStrategy() = default;

  /// The parameters that the layer registers, with their names.
  virtual std::vector<std::pair<std::string, at::Tensor>> parameters() = 0;

  /// Differentiable activations, one per feature.
  virtual std::vector<at::Tensor> forward(Batch batch) = 0;

  /// The first part of a forward() in two parts. The returned function gives the
  /// activations and may be called only once. On a fused strategy, a training batch is
  /// looked up in the background, in the tables as they are now.
  virtual std::function<std::vector<at::Tensor>()> begin_forward(Batch batch) {
    return [this, batch = std::move(batch)]() mutable {
      return forward(std::move(batch));
    };
  }

  /// Called instead of forward() if a batch can't be read, so that other ranks do not
  /// wait for it. May raise the error of another rank.
  virtual void abort(const std::exception_ptr& /*error*/) {}

  /// While the lock is held, no update changes the tables. If a torch::optim updates
  /// the tables, the lock is empty, and the caller must keep updates away.
  virtual std::shared_lock<std::shared_mutex> lock_for_reading() const {
    return {};
  }

  /// Waits until no lookup runs in the background. Called before the tables are replaced.
  virtual void wait_for_lookups() {}

  /// Drops gradients that wait for a step, because the tables have been replaced.
  virtual void discard_pending() {}

  /// The gradients that the next step of an optimizer applies. nullptr unless this is a
  /// fused strategy under Apply::kOnStep.
  virtual std::shared_ptr<PendingGradients> pending() {
    return nullptr;
  }

  /// Returns a function that returns the rows to which the dense gradient of a table
  /// belongs: [n] int64, sorted. Unset if the gradient is sparse or does not exist.
  virtual std::function<at::Tensor()> touched_rows(size_t /*table*/) {
    return nullptr;
  }

  /// Until the matching enable_updates(), backward passes change neither tables, nor
  /// gradients of tables, nor gradients that wait for an update.
  void disable_updates() {
    if (disable_count_++ == 0) {
      set_updates_enabled(false);
    }
  }
  void enable_updates() {
    if (--disable_count_ == 0) {
      set_updates_enabled(true);
    }
  }

 private:
  virtual void set_updates_enabled(bool are_enabled) = 0;

  int64_t disable_count_ = 0;
};

/// Tables in a store. The only parameter is the virtual variable.
/// Errors:  c10::ValueError for optimizers that Apply::kOnStep excludes.
std::unique_ptr<EmbeddingStrategy> make_fused_strategy(
    std::shared_ptr<EmbeddingState> state,
    std::shared_ptr<TableStore> store,
    Apply apply);

std::unique_ptr<EmbeddingStrategy> make_host_strategy(
    std::shared_ptr<EmbeddingState> state,
    Strategy::Host options);

std::unique_ptr<EmbeddingStrategy> make_padded_strategy(
    std::shared_ptr<EmbeddingState> state);

std::unique_ptr<EmbeddingStrategy> make_strategy(
    const Strategy& strategy,
    Apply apply,
    std::shared_ptr<EmbeddingState> state);

/// Whether `strategy` updates tables by their own optimizers.
WithSlots slots_under(const Strategy& strategy);

/// The part of the tables that this process holds.
Shards shards_under(const Strategy& strategy);

/// Runs `configure`, which returns the configuration of this rank as text. If the tables
/// are sharded, compares the texts of all ranks.
/// Errors:  what `configure` throws, on all ranks; c10::ValueError showing where the
///          texts differ.
void configure_ranks(
    const Strategy& strategy,
    c10::function_ref<std::string()> configure);

}  // namespace tessera
