// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include "packages/serving/src/server/http_message.h"
#include "packages/serving/src/server/published_pipeline.h"
#include "packages/serving/src/server/request_values.h"
#include "packages/serving/src/server/server_metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace tessera::serving {

enum class JobKind { kLookup, kScore, kRecommend };

/// A request that waits for a thread.
struct Job {
  JobKind kind = JobKind::kLookup;
  std::string body = {};
  std::chrono::steady_clock::time_point deadline = {};
  /// Any thread may call this, but only once.
  std::function<void(HttpResponse)> reply = {};
  /// The job's place in the queue. The queue sets it.
  uint64_t number = 0;
  /// Whether the body has raw values. Set when it is read.
  bool has_columns = false;
};

using JobPtr = std::shared_ptr<Job>;

/// The requests that wait, in the order in which they came.
class RequestQueue {
 public:
  enum class Push { kAdded, kFull, kClosed };

  explicit RequestQueue(const ServerOptions& options) : options_(options) {}

  Push push(const JobPtr& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) {
      return Push::kClosed;
    }
    if (count() >= static_cast<size_t>(options_.max_queue)) {
      return Push::kFull;
    }
    job->number = next_++;
    jobs_of(job->kind).emplace(job->number, job);
    has_changed_.notify_one();
    return Push::kAdded;
  }

  /// Returns whether the job was still waiting. If so, no thread will take it.
  bool remove(const Job& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return jobs_of(job.kind).erase(job.number) != 0;
  }

  /// Waits for requests, and returns the oldest one. If it is no lookup, further requests of
  /// its kind are returned with it: at most max_batch, or 32 for lists of items, and no more
  /// once their bodies have max_batch_bytes. Returns nothing after close(), when all requests
  /// are taken.
  std::vector<JobPtr> take() {
    constexpr int64_t kMaxRecommend = 32;
    std::unique_lock<std::mutex> lock(mutex_);
    has_changed_.wait(lock, [this] { return is_closed_ || count() > 0; });
    Jobs& waiting = *std::ranges::min_element(waiting_, {}, [this](auto& jobs) {
      return jobs.empty() ? next_ : jobs.begin()->first;
    });
    const int64_t max_taken = &waiting == &jobs_of(JobKind::kLookup) ? 1
        : &waiting == &jobs_of(JobKind::kScore) ? options_.max_batch
                                                : kMaxRecommend;
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

  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    has_changed_.notify_all();
  }

  size_t size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return count();
  }

 private:
  using Jobs = std::map<uint64_t, JobPtr>;

  Jobs& jobs_of(JobKind kind) {
    return waiting_.at(static_cast<size_t>(kind));
  }
  size_t count() const {
    size_t count = 0;
    for (const Jobs& jobs : waiting_) {
      count += jobs.size();
    }
    return count;
  }

  const ServerOptions& options_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable has_changed_;
  std::array<Jobs, 3> waiting_;  // by kind
  uint64_t next_ = 0;
  bool is_closed_ = false;
};

/// Answers requests, at once or by a thread that looks up and scores what waits in a queue.
/// score_requests.cpp has the functions of /lookup and /score, and recommend_requests.cpp
/// those of /recommend.
class RequestHandler {
 public:
  /// Keeps a reference to the options.
  RequestHandler(
      std::shared_ptr<Reader> reader,
      const ServerOptions& options,
      ScoreFunction score);
  ~RequestHandler();

  /// The response, or the job that calls `reply` from a thread.
  struct Answer {
    std::optional<HttpResponse> response = {};
    JobPtr job = {};
  };
  Answer handle(
      HttpRequest request,
      std::chrono::steady_clock::time_point now,
      std::function<void(HttpResponse)> reply);

  /// Removes a job whose deadline is over from the queue, and returns its response. Returns
  /// nothing if a thread already computes the response.
  std::optional<HttpResponse> give_up(const Job& job);

  /// Answers what waits, and ends the threads.
  void finish();

  ServerMetrics& metrics() {
    return metrics_;
  }

 private:
  HttpResponse get(const std::string& path);
  // The loop of each thread.
  void run();
  // The body of the answer to a /lookup.
  // Errors:  std::invalid_argument and std::out_of_range with a message for the client.
  std::string look_up(const std::string& body);
  void score(std::vector<JobPtr> jobs);
  // Returns the jobs during which a new version came.
  std::vector<JobPtr> recommend(std::vector<JobPtr> jobs);
  void score_together(
      std::span<const ScoreRequest> requests,
      std::span<const JobPtr> jobs,
      const RequestContext& context);
  // Without `waits`, the context may lack a pipeline that is still being read.
  RequestContext context_of(const Version& version, bool waits = true);
  // The version that the functions use.
  std::shared_ptr<const Version> version_of_functions() const;
  bool has_pipeline_of(const RequestContext& context, int64_t version);
  // What /version says about /recommend.
  Json describe_recommend(const RequestContext& context) const;

  std::shared_ptr<Reader> reader_;
  const ServerOptions& options_;
  ScoreFunction score_;
  ServerMetrics metrics_;
  PipelineCache pipelines_;
  RequestQueue queue_;
  std::vector<std::thread> threads_;
};

/// The response that tells a client why its request is wrong.
HttpResponse refusal(std::string_view problem);

/// Makes the response for the exception that is being handled. The response describes the
/// error only if the client made the mistake.
HttpResponse response_of_exception();

/// Checks numbers that a function has given.
/// Errors:  std::runtime_error if there are not `count`, or for one that is not finite.
void check_numbers(std::span<const float> numbers, int64_t count);

/// The path as a label of the metrics: "other" if the server does not have it.
std::string label_of(const std::string& path);

}  // namespace tessera::serving
