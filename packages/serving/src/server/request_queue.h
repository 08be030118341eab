// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/server.h>

#include "packages/serving/src/server/http_message.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::serving {

enum class JobKind { kLookup, kScore };

/// A request that waits for a thread.
struct Job {
  JobKind kind = JobKind::kLookup;
  std::string body = {};
  std::chrono::steady_clock::time_point deadline = {};
  /// Any thread may call it, once.
  std::function<void(HttpResponse)> reply = {};
  /// Its place in the queue, which the queue sets.
  uint64_t number = 0;
};

using JobPtr = std::shared_ptr<Job>;

/// The requests that wait, in the order in which they came.
class RequestQueue {
 public:
  enum class Push { kAdded, kFull, kClosed };

  explicit RequestQueue(const ServerOptions& options) : options_(options) {}

  Push push(const JobPtr& job);

  /// Returns whether the job was still waiting. Then no thread takes it any more.
  bool remove(const Job& job);

  /// Waits for requests, and returns the first one. If it is to be scored, so are those
  /// after it, up to max_batch and until their bodies have max_batch_bytes. Returns nothing
  /// after close(), when all are taken.
  std::vector<JobPtr> take();

  void close();
  size_t size() const;

 private:
  const ServerOptions& options_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable has_changed_;
  std::map<uint64_t, JobPtr> lookups_;
  std::map<uint64_t, JobPtr> scores_;
  uint64_t next_ = 0;
  bool is_closed_ = false;
};

}  // namespace tessera::serving
