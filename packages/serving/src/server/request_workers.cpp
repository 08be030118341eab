// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_workers.h"

#include <tessera/serving/short_time_slices.h>

#include "packages/serving/src/server/error_log.h"
#include "packages/serving/src/server/lookup_json.h"
#include "packages/serving/src/server/score_json.h"
#include "src/common/check.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace tessera::serving {

namespace {

// The client knows nothing of the function or path in brackets that begins a message, such
// as [Version::lookup] or [/srv/published].
std::string_view without_place(std::string_view message) {
  const size_t end = message.find("] ");
  const bool has_place = message.starts_with('[') &&
      end != std::string_view::npos &&
      (message[1] == '/' || (message[1] >= 'A' && message[1] <= 'Z')) &&
      message.find(' ') == end + 1;
  return has_place ? message.substr(end + 2) : message;
}

HttpResponse refusal(std::string_view problem) {
  return error_response(400, without_place(problem));
}

// The response for the exception that is being handled. Only mistakes of the client are
// told to it.
HttpResponse response_of_exception() {
  try {
    throw;
  } catch (const std::invalid_argument& error) {
    return refusal(error.what());
  } catch (const std::out_of_range& error) {
    return refusal(error.what());
  } catch (const std::exception& error) {
    log_error(error.what());
  } catch (...) {
    log_error("an exception that is not a std::exception");
  }
  return error_response(500, "internal error");
}

HttpResponse json_response(std::string body) {
  return {.body = std::move(body)};
}

}  // namespace

HttpResponse deadline_response() {
  return busy_response(
      "The request waited too long for a thread. Try again later.");
}

RequestWorkers::RequestWorkers(
    std::shared_ptr<Reader> reader,
    const ServerOptions& options,
    ScoreFunction score,
    RequestQueue& queue,
    ServerMetrics& metrics)
    : reader_(std::move(reader)),
      limits_{
          .max_bytes = static_cast<size_t>(options.max_body_bytes),
          .max_values = options.max_ids},
      score_(std::move(score)),
      queue_(queue),
      metrics_(metrics) {
  try {
    for (int64_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this] { run(); });
    }
  } catch (...) {  // the system has no more threads
    queue_.close();
    join();
    throw;
  }
}

RequestWorkers::~RequestWorkers() {
  join();
}

void RequestWorkers::join() {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

void RequestWorkers::run() {
  use_short_time_slices();
  for (std::vector<JobPtr> jobs = queue_.take(); !jobs.empty();
       jobs = queue_.take()) {
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(jobs, [&](const JobPtr& job) {
      const bool is_late = now >= job->deadline;
      if (is_late) {
        metrics_.count_rejection(Rejection::kDeadline);
        job->reply(deadline_response());
      }
      return is_late;
    });
    if (jobs.empty()) {
      continue;
    }
    if (jobs.front()->kind == JobKind::kScore) {
      score(std::move(jobs));
    } else {
      jobs.front()->reply(look_up(*jobs.front()));
    }
  }
}

HttpResponse RequestWorkers::look_up(const Job& job) {
  try {
    LookupAnswer answer = answer_lookup(job.body, *reader_->version(), limits_);
    metrics_.count_lookups(answer.ids);
    return json_response(std::move(answer.body));
  } catch (...) {
    return response_of_exception();
  }
}

void RequestWorkers::score(std::vector<JobPtr> jobs) {
  std::vector<ScoreRequest> requests;
  std::erase_if(jobs, [&](const JobPtr& job) {
    try {
      requests.push_back(
          read_score_request(job->body, *reader_->version(), limits_));
      return false;
    } catch (...) {
      job->reply(response_of_exception());
      return true;
    }
  });
  if (!jobs.empty()) {
    score_together(requests, jobs);
  }
}

void RequestWorkers::score_together(
    std::span<const ScoreRequest> requests,
    std::span<const JobPtr> jobs) {
  metrics_.count_batch(requests.size());
  std::vector<ScoreResult> results;
  try {
    results = score_(requests);
    TESSERA_CHECK(
        results.size() == requests.size(),
        "the score function gave {} results for {} requests",
        results.size(),
        requests.size());
  } catch (...) {
    if (requests.size() == 1) {
      jobs.front()->reply(response_of_exception());
      return;
    }
    // One wrong request should not fail the others.
    for (size_t i = 0; i < requests.size(); ++i) {
      score_together(requests.subspan(i, 1), jobs.subspan(i, 1));
    }
    return;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    HttpResponse response;
    try {
      if (results[i].error.empty()) {
        response = json_response(write_score_result(results[i], requests[i]));
        metrics_.count_candidates(requests[i].num_candidates);
      } else {
        response = refusal(results[i].error);
      }
    } catch (...) {
      response = response_of_exception();
    }
    jobs[i]->reply(std::move(response));
  }
}

}  // namespace tessera::serving
