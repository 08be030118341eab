// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_handler.h"

#include <tessera/common/shorten.h>

#include "packages/serving/src/server/page.h"
#include "packages/serving/src/server/version_json.h"
#include "src/common/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace tessera::serving {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<std::string_view, 4> kGetPaths{
    "/",
    "/healthz",
    "/version",
    "/metrics"};
constexpr std::string_view kLookup = "/lookup";
constexpr std::string_view kScore = "/score";

bool is_get_path(std::string_view path) {
  return std::find(kGetPaths.begin(), kGetPaths.end(), path) != kGetPaths.end();
}

HttpResponse refuse_method(const HttpRequest& request, const char* allowed) {
  HttpResponse response = error_response(
      405,
      fmt::format(
          "{} takes {}, but got {}.",
          request.path,
          allowed,
          shorten(request.method)));
  response.headers = fmt::format("Allow: {}\r\n", allowed);
  return response;
}

HttpResponse refuse_encoding(const HttpRequest& request) {
  HttpResponse response = error_response(
      415,
      fmt::format(
          "The body has the Content-Encoding '{}', which this server does not read. Send the body without one.",
          shorten(request.content_encoding)));
  response.headers = "Accept-Encoding: identity\r\n";
  return response;
}

}  // namespace

std::string label_of(const std::string& path) {
  return is_get_path(path) || path == kLookup || path == kScore ? path
                                                                : "other";
}

RequestHandler::RequestHandler(
    std::shared_ptr<Reader> reader,
    const ServerOptions& options,
    ScoreFunction score)
    : reader_(std::move(reader)),
      options_(options),
      scores_(score != nullptr),
      queue_(
          static_cast<size_t>(options.max_queue),
          static_cast<size_t>(options.max_batch),
          static_cast<size_t>(options.max_batch_bytes)),
      workers_(reader_, options, std::move(score), queue_, metrics_) {}

RequestHandler::~RequestHandler() {
  finish();
}

RequestHandler::Answer RequestHandler::handle(
    HttpRequest request,
    Clock::time_point now,
    std::function<void(HttpResponse)> reply) {
  if (is_get_path(request.path)) {
    if (request.method != "GET" && request.method != "HEAD") {
      return {.response = refuse_method(request, "GET, HEAD")};
    }
    return {.response = get(request.path)};
  }
  if (request.path != kLookup && request.path != kScore) {
    return {
        .response = error_response(
            404,
            fmt::format(
                "There is no path '{}'. Choose one of {}, {} and {}.",
                shorten(request.path),
                join_names(kGetPaths),
                kLookup,
                kScore))};
  }
  if (request.method != "POST") {
    return {.response = refuse_method(request, "POST")};
  }
  if (request.path == kScore && !scores_) {
    return {
        .response = error_response(
            404, "This server does not score. Send requests to /lookup.")};
  }
  if (!request.content_encoding.empty()) {
    return {.response = refuse_encoding(request)};
  }
  return post(
      request.path == kScore ? JobKind::kScore : JobKind::kLookup,
      std::move(request.body),
      now,
      std::move(reply));
}

HttpResponse RequestHandler::get(const std::string& path) {
  if (path == "/") {
    return {
        .body = std::string(page()),
        .content_type = "text/html; charset=utf-8",
        .headers =
            "Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\n"};
  }
  const std::shared_ptr<const Version> version = reader_->version();
  const ReaderStatus status = reader_->status();
  if (path == "/healthz") {
    return {.body = health_text(*version, status)};
  }
  if (path == "/version") {
    return {
        .body = version_text(
            *version,
            status,
            options_.inputs ? options_.inputs()
                            : std::vector<ScoreInputInfo>())};
  }
  return {
      .body = metrics_.text(
          {.queue_length = queue_.size(),
           .version = version->number(),
           .age_seconds = age_of(*version),
           .step = version->step(),
           .taken = status.taken}),
      .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

RequestHandler::Answer RequestHandler::post(
    JobKind kind,
    std::string body,
    Clock::time_point now,
    std::function<void(HttpResponse)> reply) {
  auto job = std::make_shared<Job>(Job{
      .kind = kind,
      .body = std::move(body),
      .deadline = now +
          std::chrono::duration_cast<Clock::duration>(
                      std::chrono::duration<double>(options_.request_seconds)),
      .reply = std::move(reply)});
  switch (queue_.push(job)) {
    case RequestQueue::Push::kAdded:
      return {.job = std::move(job)};
    case RequestQueue::Push::kFull:
      metrics_.count_rejection(Rejection::kQueueFull);
      return {
          .response = busy_response(fmt::format(
              "{} requests wait already. Try again later.",
              options_.max_queue))};
    case RequestQueue::Push::kClosed:
      break;
  }
  HttpResponse response = busy_response("The server stops.");
  response.closes = true;
  return {.response = std::move(response)};
}

std::optional<HttpResponse> RequestHandler::give_up(const Job& job) {
  if (!queue_.remove(job)) {
    return std::nullopt;
  }
  metrics_.count_rejection(Rejection::kDeadline);
  return deadline_response();
}

void RequestHandler::finish() {
  queue_.close();
  workers_.join();
}

}  // namespace tessera::serving
