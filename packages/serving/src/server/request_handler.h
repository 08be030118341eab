// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include "packages/serving/src/server/http_message.h"
#include "packages/serving/src/server/published_pipeline.h"
#include "packages/serving/src/server/recommend_json.h"
#include "packages/serving/src/server/request_json.h"
#include "packages/serving/src/server/request_queue.h"
#include "packages/serving/src/server/server_metrics.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace tessera::serving {

/// Answers requests, at once or by a thread that looks up and scores what waits in a queue.
class RequestHandler {
 public:
  /// Keeps a reference to the options.
  RequestHandler(
      std::shared_ptr<Reader> reader,
      const ServerOptions& options,
      ScoreFunction score);
  ~RequestHandler();
  RequestHandler(const RequestHandler&) = delete;
  RequestHandler& operator=(const RequestHandler&) = delete;

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
  Answer post(
      JobKind kind,
      std::string body,
      std::chrono::steady_clock::time_point now,
      std::function<void(HttpResponse)> reply);
  // The loop of each thread.
  void run();
  HttpResponse look_up(const Job& job);
  void score(std::vector<JobPtr> jobs);
  // Returns the jobs during which a new version came.
  std::vector<JobPtr> recommend(const std::vector<JobPtr>& jobs);
  void score_together(
      std::span<const ScoreRequest> requests,
      std::span<const JobPtr> jobs,
      const RequestContext& context);
  // Without `waits`, the context may lack a pipeline that is still being read.
  RequestContext context_of(const Version& version, bool waits = true);
  // The version that the functions use.
  std::shared_ptr<const Version> version_of_functions() const;
  // The same, which must have items.
  std::shared_ptr<const Version> version_of_items() const;
  bool has_pipeline_of(const RequestContext& context, int64_t version);

  std::shared_ptr<Reader> reader_;
  const ServerOptions& options_;
  ScoreFunction score_;
  ServerMetrics metrics_;
  PipelineCache pipelines_;
  RequestQueue queue_;
  std::vector<std::thread> threads_;
};

/// The path as a label of the metrics: "other" if the server does not have it.
std::string label_of(const std::string& path);

}  // namespace tessera::serving
