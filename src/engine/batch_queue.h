// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/lookup_worker.h"
#include "src/features/id_bags.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// What one replica has of a batch in flight.
struct BatchSlice {
  bool is_enqueued = false;
  bool is_dequeued = false;
  std::shared_ptr<const std::vector<IdBags>> bags = nullptr;
  /// Of a lookup in the background.
  JobResult<std::vector<at::Tensor>> lookup = {};
  /// What dequeue() returned. apply_gradients() reads its grad(). Empty while the
  /// lookup runs; nullptr before that, and in batches without gradients.
  std::shared_ptr<std::vector<at::Tensor>> activations = nullptr;
  /// One per feature once they have come.
  std::vector<at::Tensor> gradients = {};
};

/// A batch in flight.
struct QueuedBatch {
  std::string name = {};  // may be empty
  bool is_training = true;
  std::vector<BatchSlice> slices = {};  // [replicas]

  bool waits_to_be_dequeued() const;
  bool is_dequeued_by_all() const;
  bool has_all_gradients() const;
  /// Whether the replica has nothing left to do with it.
  bool is_done_for(int64_t replica) const;
  /// Replicas without gradients, such as "1, 3".
  std::string missing_replicas() const;
};

/// Batches in flight in the order of their first enqueue(). Names are matched
/// exactly; without a name the oldest that fits is meant. Not thread safe.
class BatchQueue {
 public:
  BatchQueue(int64_t replicas, int64_t depth)
      : replicas_(replicas), depth_(depth) {}

  /// Whether a slice may come in now; if not, it may later.
  /// Errors:  c10::ValueError when it never may: the replica has it in flight
  ///          already, or replicas disagree on `training`.
  bool may_enqueue(const std::string& name, bool training, int64_t replica)
      const;
  /// For a message when it is still so after the timeout.
  std::string why_not_enqueue(const std::string& name, int64_t replica) const;
  /// The replica's slice of a batch that others have begun, or of a new one.
  BatchSlice& enqueue(const std::string& name, bool training, int64_t replica);

  /// nullptr when there is none yet.
  /// Errors:  c10::ValueError when a named one has been dequeued already.
  QueuedBatch* find_to_dequeue(const std::string& name, int64_t replica);
  /// For a message when dequeue() has waited until the timeout.
  std::string why_not_dequeue(const std::string& name, int64_t replica);

  /// A batch that waits for the replica's gradients.
  /// Errors:  c10::ValueError saying which of its conditions fails.
  QueuedBatch& find_to_train(const std::string& name, int64_t replica);

  /// Errors:  c10::ValueError for a name that is not in flight, or a batch
  ///          without a name that some replicas have not enqueued yet.
  QueuedBatch& find_to_drop(const std::string& name);

  /// A batch that has the replica's gradients and waits for others'.
  const QueuedBatch* find_half_updated(int64_t replica) const;

  void erase(const QueuedBatch& batch);

  std::list<QueuedBatch>& batches() {
    return batches_;
  }
  /// "'a', 'b'"; for messages.
  std::string names() const;

 private:
  const QueuedBatch* find_to_join(const std::string& name, int64_t replica)
      const;
  const QueuedBatch* find_unfinished(const std::string& name, int64_t replica)
      const;

  int64_t replicas_;
  int64_t depth_;
  std::list<QueuedBatch> batches_;
};

/// "'name'" or "without a name".
std::string quoted_batch_name(const std::string& name);

}  // namespace tessera
