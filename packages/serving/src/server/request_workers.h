// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include "packages/serving/src/server/request_queue.h"
#include "packages/serving/src/server/request_values.h"
#include "packages/serving/src/server/server_metrics.h"

#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace tessera::serving {

/// The threads that look up and score what waits in a queue.
class RequestWorkers {
 public:
  RequestWorkers(
      std::shared_ptr<Reader> reader,
      const ServerOptions& options,
      ScoreFunction score,
      RequestQueue& queue,
      ServerMetrics& metrics);
  /// Ends with the queue, which must be closed.
  ~RequestWorkers();
  RequestWorkers(const RequestWorkers&) = delete;
  RequestWorkers& operator=(const RequestWorkers&) = delete;

  /// Answers what is in the queue and ends. The queue must be closed.
  void join();

 private:
  void run();
  HttpResponse look_up(const Job& job);
  void score(std::vector<JobPtr> jobs);
  void score_together(
      std::span<const ScoreRequest> requests,
      std::span<const JobPtr> jobs);

  std::shared_ptr<Reader> reader_;
  RequestLimits limits_;
  ScoreFunction score_;
  RequestQueue& queue_;
  ServerMetrics& metrics_;
  std::vector<std::thread> threads_;
};

/// The response for a request that has waited too long.
HttpResponse deadline_response();

}  // namespace tessera::serving
