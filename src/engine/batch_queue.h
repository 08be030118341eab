// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/lookup_worker.h"
#include "src/features/id_bags.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

/// One replica's part of a batch in flight.
struct BatchSlice {
  bool is_enqueued = false;
  bool is_dequeued = false;
  /// The thread that called dequeue(), in training batches.
  std::thread::id dequeued_by = {};
  /// The ids of all features. The lookup changes them, see TableStore::lookup_local().
  std::shared_ptr<std::vector<IdBags>> bags = nullptr;
  /// The result of a background lookup.
  JobResult<std::vector<at::Tensor>> lookup = {};
  /// The activations that dequeue() returned. apply_gradients() reads their grad(). Empty
  /// while the lookup runs; nullptr before that, and in batches without gradients.
  std::shared_ptr<std::vector<at::Tensor>> activations = nullptr;
  /// One per feature; empty until apply_gradients() is called.
  std::vector<at::Tensor> gradients = {};
};

/// A batch in flight.
struct QueuedBatch {
  std::string name = {};  // may be empty
  bool is_training = true;
  std::vector<BatchSlice> slices = {};  // [replicas]

  bool waits_to_be_dequeued() const;
  /// Whether a replica has made all its calls for its slice of this batch.
  bool is_done(const BatchSlice& slice) const;
  /// Whether all replicas have made all their calls.
  bool is_done() const;
  /// Whether the batch is for training, and the replica has dequeued it, but has not
  /// passed its gradients.
  bool is_open_for(int64_t replica) const;
  /// The replicas that have not finished the batch, such as "1, 3".
  std::string missing_replicas() const;
};

/// The batches in flight, in the order of their first enqueue(). In find_to_dequeue() and
/// find_to_drop(), an empty name stands for the oldest batch without a name that fits the
/// call. Not thread safe.
class BatchQueue {
 public:
  BatchQueue(int64_t replicas, int64_t depth)
      : replicas_(replicas), depth_(depth) {}

  /// Whether the replica may enqueue its slice now. If false, it may do so later.
  /// Errors:  c10::ValueError if waiting does not help: the replica already has the
  ///          batch in flight, or replicas disagree on `training`.
  bool may_enqueue(const std::string& name, bool training, int64_t replica)
      const;
  /// The message for an enqueue() that has waited until the timeout.
  std::string why_not_enqueue(const std::string& name, int64_t replica) const;
  /// Returns the replica's slice of a batch that other replicas have enqueued, or of a
  /// new batch.
  BatchSlice& enqueue(const std::string& name, bool training, int64_t replica);

  /// Returns nullptr if the batch has not been enqueued yet.
  /// Errors:  c10::ValueError if the replica has already dequeued the named batch.
  QueuedBatch* find_to_dequeue(const std::string& name, int64_t replica);
  /// The message for a dequeue() that has waited until the timeout.
  std::string why_not_dequeue(const std::string& name, int64_t replica);

  /// The batch that waits for the replica's gradients.
  /// Errors:  c10::ValueError with the reason if there is none, and if several batches
  ///          without a name wait for them.
  QueuedBatch& find_to_train(const std::string& name, int64_t replica);

  /// The batch to drop.
  /// Errors:  c10::ValueError for a name that is not in flight, or a batch
  ///          without a name that some replicas have not enqueued yet.
  QueuedBatch& find_to_drop(const std::string& name);

  /// A batch that has this replica's gradients and waits for those of other replicas, or
  /// nullptr.
  const QueuedBatch* find_partly_updated(int64_t replica) const;

  /// The number of batches that are open for the replica.
  int64_t num_open(int64_t replica) const;

  void erase(const QueuedBatch& batch);

  std::list<QueuedBatch>& batches() {
    return batches_;
  }
  /// The names for messages, such as "'a', 'b'".
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
