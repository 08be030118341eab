// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_queue.h"

#include <iterator>

namespace tessera::serving {

RequestQueue::Push RequestQueue::push(const JobPtr& job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) {
    return Push::kClosed;
  }
  if (std::ssize(lookups_) + std::ssize(scores_) >= options_.max_queue) {
    return Push::kFull;
  }
  job->number = next_++;
  (job->kind == JobKind::kScore ? scores_ : lookups_).emplace(job->number, job);
  has_changed_.notify_one();
  return Push::kAdded;
}

bool RequestQueue::remove(const Job& job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return (job.kind == JobKind::kScore ? scores_ : lookups_).erase(job.number) !=
      0;
}

std::vector<JobPtr> RequestQueue::take() {
  std::unique_lock<std::mutex> lock(mutex_);
  has_changed_.wait(lock, [this] {
    return is_closed_ || !lookups_.empty() || !scores_.empty();
  });
  const bool has_score = !scores_.empty() &&
      (lookups_.empty() || scores_.begin()->first < lookups_.begin()->first);
  std::map<uint64_t, JobPtr>& waiting = has_score ? scores_ : lookups_;
  const int64_t max_taken = has_score ? options_.max_batch : 1;
  std::vector<JobPtr> taken;
  int64_t bytes = 0;
  while (std::ssize(taken) < max_taken && bytes < options_.max_batch_bytes &&
         !waiting.empty()) {
    bytes += std::ssize(waiting.begin()->second->body);
    taken.push_back(std::move(waiting.begin()->second));
    waiting.erase(waiting.begin());
  }
  return taken;
}

void RequestQueue::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  has_changed_.notify_all();
}

size_t RequestQueue::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lookups_.size() + scores_.size();
}

}  // namespace tessera::serving
