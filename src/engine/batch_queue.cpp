// SPDX-License-Identifier: Apache-2.0
#include "src/engine/batch_queue.h"

#include <tessera/common/shorten.h>

#include <algorithm>

#include "src/common/check.h"
#include "src/common/names.h"

namespace tessera {

namespace {

std::string where_of(
    const char* where,
    const std::string& name,
    int64_t replica) {
  return fmt::format(
      "[{}] the batch {} of replica {}",
      where,
      quoted_batch_name(name),
      replica);
}

const char* training_text(bool training) {
  return training ? "training = true" : "training = false";
}

template <class Batches, class Matches>
auto* find_first(Batches& batches, const std::string& name, Matches matches) {
  const auto found = std::ranges::find_if(batches, [&](const auto& batch) {
    return batch.name == name && matches(batch);
  });
  return found == batches.end() ? nullptr : &*found;
}

}  // namespace

std::string quoted_batch_name(const std::string& name) {
  return name.empty() ? "without a name" : c10::str("'", shorten(name), "'");
}

bool QueuedBatch::waits_to_be_dequeued() const {
  return std::ranges::any_of(slices, [](const auto& slice) {
    return slice.is_enqueued && !slice.is_dequeued;
  });
}

bool QueuedBatch::is_done() const {
  return std::ranges::all_of(
      slices, [&](const BatchSlice& slice) { return is_done(slice); });
}

bool QueuedBatch::is_done(const BatchSlice& slice) const {
  return is_training ? !slice.gradients.empty() : slice.is_dequeued;
}

bool QueuedBatch::is_open_for(int64_t replica) const {
  const BatchSlice& slice = slices[replica];
  return is_training && slice.is_dequeued && slice.gradients.empty();
}

std::string QueuedBatch::missing_replicas() const {
  std::vector<std::string> missing;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!is_done(slices[i])) {
      missing.push_back(std::to_string(i));
    }
  }
  return join_names(missing);
}

const QueuedBatch* BatchQueue::find_to_join(
    const std::string& name,
    int64_t replica) const {
  return find_first(batches_, name, [&](const QueuedBatch& batch) {
    return !batch.slices[replica].is_enqueued;
  });
}

// Finds a named batch that the replica has already enqueued.
const QueuedBatch* BatchQueue::find_unfinished(
    const std::string& name,
    int64_t replica) const {
  return name.empty()
      ? nullptr
      : find_first(batches_, name, [&](const QueuedBatch& batch) {
          return batch.slices[replica].is_enqueued;
        });
}

bool BatchQueue::may_enqueue(
    const std::string& name,
    bool training,
    int64_t replica) const {
  if (const QueuedBatch* batch = find_unfinished(name, replica)) {
    TESSERA_CHECK_VALUE(
        batch->is_done(batch->slices[replica]),
        "{} is in flight already. Dequeue it and apply its gradients, drop it, or use another name.",
        where_of("enqueue", name, replica));
    return false;  // other replicas have not finished it
  }
  if (const QueuedBatch* batch = find_to_join(name, replica)) {
    TESSERA_CHECK_VALUE(
        batch->is_training == training,
        "[enqueue] all replicas must enqueue the batch {} with the same value of training. It was enqueued with {}, but replica {} enqueues it with {}. Use the same value, or two names.",
        quoted_batch_name(name),
        training_text(batch->is_training),
        replica,
        training_text(training));
    return true;
  }
  const auto waiting =
      std::ranges::count_if(batches_, &QueuedBatch::waits_to_be_dequeued);
  return waiting < depth_;
}

std::string BatchQueue::why_not_enqueue(
    const std::string& name,
    int64_t replica) const {
  if (const QueuedBatch* batch = find_unfinished(name, replica)) {
    return fmt::format(
        "{} waits for the previous batch of this name, which is not finished on replica {}. Finish it there, or drop it.",
        where_of("enqueue", name, replica),
        batch->missing_replicas());
  }
  return fmt::format(
      "[enqueue] the queue is full: queue_depth = {} batches wait to be dequeued. In flight: {}. Dequeue or drop one, or raise queue_depth.",
      depth_,
      names());
}

std::string BatchQueue::why_not_dequeue(
    const std::string& name,
    int64_t replica) {
  const std::string batch = where_of("dequeue", name, replica);
  if (name.empty() && find_to_dequeue(name, replica) == nullptr) {
    return fmt::format(
        "[dequeue] expected a batch without a name for replica {}, but none was enqueued. In flight: {}. Call enqueue() first, or at the same time in another thread.",
        replica,
        names());
  }
  if (find_to_dequeue(name, replica) == nullptr) {
    return fmt::format(
        "{} has not been enqueued, or has already been finished. In flight: {}. Enqueue it, or correct the name.",
        batch,
        names());
  }
  const QueuedBatch* blocking = find_partly_updated(replica);
  for (const QueuedBatch& other : batches_) {
    if (blocking == nullptr && other.is_training) {
      blocking = &other;
    }
  }
  TORCH_INTERNAL_ASSERT(blocking != nullptr);
  return fmt::format(
      "{} waits for the update of the batch {}, which has no gradients from replica {} yet. Pass these gradients to apply_gradients(), or drop the batch.",
      batch,
      quoted_batch_name(blocking->name),
      blocking->missing_replicas());
}

BatchSlice& BatchQueue::enqueue(
    const std::string& name,
    bool training,
    int64_t replica) {
  auto* batch = const_cast<QueuedBatch*>(find_to_join(name, replica));
  if (batch == nullptr) {
    batches_.push_back(
        {.name = name,
         .is_training = training,
         .slices = std::vector<BatchSlice>(replicas_)});
    batch = &batches_.back();
  }
  batch->slices[replica].is_enqueued = true;
  return batch->slices[replica];
}

QueuedBatch* BatchQueue::find_to_dequeue(
    const std::string& name,
    int64_t replica) {
  QueuedBatch* batch = find_first(batches_, name, [&](const auto& other) {
    const BatchSlice& slice = other.slices[replica];
    return slice.is_enqueued && (!name.empty() || !slice.is_dequeued);
  });
  TESSERA_CHECK_VALUE(
      batch == nullptr || !batch->slices[replica].is_dequeued,
      "{} has been dequeued already. Keep its activations, or enqueue it again.",
      where_of("dequeue", name, replica));
  return batch;
}

QueuedBatch& BatchQueue::find_to_train(
    const std::string& name,
    int64_t replica) {
  QueuedBatch* batch = find_first(batches_, name, [&](const auto& other) {
    return !name.empty() || other.is_open_for(replica);
  });
  TESSERA_CHECK_VALUE(
      batch != nullptr,
      "[apply_gradients] no training batch {} of replica {} waits for gradients. In flight: {}. Pass the name of a batch that was dequeued and has no gradients yet.",
      quoted_batch_name(name),
      replica,
      names());
  const char* problem = !batch->is_training
      ? " was enqueued with training = false. Enqueue it for training."
      : !batch->slices[replica].is_dequeued
      ? " has not been dequeued. Dequeue its activations first."
      : " already has its gradients. Pass the sum of all gradients in one call.";
  TESSERA_CHECK_VALUE(
      batch->is_open_for(replica),
      "{}{}",
      where_of("apply_gradients", name, replica),
      problem);
  if (name.empty()) {
    const auto open = std::ranges::count_if(batches_, [&](const auto& other) {
      return other.name.empty() && other.is_open_for(replica);
    });
    TESSERA_CHECK_VALUE(
        open == 1,
        "[apply_gradients] expected one training batch without a name that replica {} has dequeued and that has no gradients, but got {}, and the gradients may belong to any of them. Call drop() when you skip the update of a batch, enqueue batches of an evaluation with training = false, or give each batch a name.",
        replica,
        open);
  }
  return *batch;
}

int64_t BatchQueue::num_open(int64_t replica) const {
  return std::ranges::count_if(batches_, [&](const QueuedBatch& batch) {
    return batch.is_open_for(replica);
  });
}

QueuedBatch& BatchQueue::find_to_drop(const std::string& name) {
  QueuedBatch* batch =
      find_first(batches_, name, [](const auto&) { return true; });
  TESSERA_CHECK_VALUE(
      batch != nullptr,
      "[drop] no batch {} is in flight. In flight: {}. Correct the name.",
      quoted_batch_name(name),
      names());
  // A slice that arrives after the drop would be added to the next batch.
  TESSERA_CHECK_VALUE(
      !name.empty() ||
          std::ranges::all_of(batch->slices, &BatchSlice::is_enqueued),
      "[drop] all replicas must have enqueued a batch without a name before it is dropped, but some have not enqueued the oldest one. Give names to batches that may be dropped.");
  return *batch;
}

const QueuedBatch* BatchQueue::find_partly_updated(int64_t replica) const {
  const auto found = std::ranges::find_if(batches_, [&](const auto& batch) {
    return !batch.slices[replica].gradients.empty();
  });
  return found == batches_.end() ? nullptr : &*found;
}

void BatchQueue::erase(const QueuedBatch& batch) {
  batches_.remove_if(
      [&](const QueuedBatch& other) { return &other == &batch; });
}

std::string BatchQueue::names() const {
  const std::string text = join_names(batches_, [](const QueuedBatch& batch) {
    return quoted_batch_name(batch.name);
  });
  return text.empty() ? "(none)" : text;
}

}  // namespace tessera
