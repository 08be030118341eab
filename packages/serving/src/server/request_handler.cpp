// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_handler.h"

#include <tessera/common/shorten.h>
#include <tessera/serving/short_time_slices.h>

#include "packages/serving/src/reader/version.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace tessera::serving {

// The text of page.html. The build makes the source file with this function.
std::string_view page();

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<std::string_view, 4> kGetPaths{
    "/",
    "/healthz",
    "/version",
    "/metrics"};
// In the order of JobKind.
constexpr std::array<std::string_view, 3> kPostPaths{
    "/lookup",
    "/score",
    "/recommend"};

bool is_get_path(std::string_view path) {
  return std::ranges::find(kGetPaths, path) != kGetPaths.end();
}

// A version that can't answer the request.
struct NotServed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A function has used another version than the rest of the request.
struct VersionChanged : std::exception {};

// The `count` numbers that a function gives for a request that has read this version.
std::vector<float> call(
    const ScoreFunction& function,
    const ScoreRequest& request,
    int64_t count,
    const Version& version) {
  std::vector<ScoreResult> results = function({&request, 1});
  TESSERA_CHECK(
      results.size() == 1,
      "a function gave {} results for 1 request",
      results.size());
  ScoreResult& result = results[0];
  // A newer version may refuse what is right for this one. An error may have no version.
  if (result.version != 0 && result.version != version.number()) {
    throw VersionChanged();
  }
  if (!result.error.empty()) {
    throw std::invalid_argument(result.error);
  }
  TESSERA_CHECK(
      result.version != 0,
      "a function gave results of version 0. Set ScoreResult::version to the number of the version that it uses.");
  check_numbers(result.scores, count);
  return std::move(result.scores);
}

HttpResponse refuse_method(const HttpRequest& request, const char* allowed) {
  return error_response(
      405,
      fmt::format(
          "{} takes {}, but got {}.",
          request.path,
          allowed,
          shorten(request.method)),
      fmt::format("Allow: {}\r\n", allowed));
}

// Removes the function or path in brackets that begins a message, such as [Version::lookup]
// or [/srv/published], because a client can't use it. Another place in the brackets stays:
// [Columns 'year'] becomes "Columns 'year':".
HttpResponse refusal(std::string_view problem) {
  size_t end = problem.find("] ");
  const bool has_place = problem.starts_with('[') &&
      end != std::string_view::npos &&
      (problem[1] == '/' || (problem[1] >= 'A' && problem[1] <= 'Z')) &&
      problem.find(' ') == end + 1;
  if (has_place) {
    problem.remove_prefix(end + 2);
    end = problem.find("] ");
  }
  std::string text(problem);
  if (text.starts_with('[') && end != std::string_view::npos) {
    text = text.substr(1, end - 1) + ":" + text.substr(end + 1);
  }
  return error_response(400, text);
}

// Makes the response for the exception that is being handled. The response describes the
// error only if the client made the mistake.
HttpResponse response_of_exception() {
  try {
    throw;
  } catch (const PipelineProblem& error) {
    return busy_response(error.what());
  } catch (const NotServed& error) {
    return error_response(404, error.what());
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

HttpResponse deadline_response() {
  return busy_response(
      "The request waited too long for a thread. Try again later.");
}

}  // namespace

std::string label_of(const std::string& path) {
  return is_get_path(path) ||
          std::ranges::find(kPostPaths, path) != kPostPaths.end()
      ? path
      : "other";
}

RequestHandler::RequestHandler(
    std::shared_ptr<Reader> reader,
    const ServerOptions& options,
    ScoreFunction score)
    : reader_(std::move(reader)),
      options_(options),
      score_(std::move(score)),
      pipelines_(options),
      queue_(options) {
  try {
    for (int64_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this] { run(); });
    }
  } catch (...) {  // the system has no more threads
    finish();
    throw;
  }
}

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
  const auto found = std::ranges::find(kPostPaths, request.path);
  if (found == kPostPaths.end()) {
    return {
        .response = error_response(
            404,
            fmt::format(
                "There is no path '{}'. Choose one of {}, {}.",
                shorten(request.path),
                join_names(kGetPaths),
                join_names(kPostPaths)))};
  }
  if (request.method != "POST") {
    return {.response = refuse_method(request, "POST")};
  }
  const auto kind = static_cast<JobKind>(found - kPostPaths.begin());
  if (kind == JobKind::kScore && !score_) {
    return {
        .response = error_response(
            404, "This server does not score. Send requests to /lookup.")};
  }
  if (!request.content_encoding.empty()) {
    return {
        .response = error_response(
            415,
            fmt::format(
                "The body has the Content-Encoding '{}', which this server does not read. Send the body without one.",
                shorten(request.content_encoding)),
            "Accept-Encoding: identity\r\n")};
  }
  auto job = std::make_shared<Job>(Job{
      .kind = kind,
      .body = std::move(request.body),
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

HttpResponse RequestHandler::get(const std::string& path) {
  if (path == "/") {
    return {
        .body = std::string(page()),
        .content_type = "text/html; charset=utf-8",
        .headers =
            "Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\n"};
  }
  const std::shared_ptr<const Version> version = reader_->version();
  ReaderStatus status = reader_->status();
  if (path == "/healthz") {
    return {.body = health_text(*version, status)};
  }
  if (path == "/version") {
    const RequestContext context = context_of(*version, /*waits=*/false);
    if (!context.problem.empty()) {
      status.problem = context.problem;
    }
    const bool has_items = version->impl().items != nullptr;
    return {
        .body = version_text(
            context,
            status,
            has_items ? RecommendContext(context, score_ != nullptr).describe()
                      : Json())};
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

std::optional<HttpResponse> RequestHandler::give_up(const Job& job) {
  if (!queue_.remove(job)) {
    return std::nullopt;
  }
  metrics_.count_rejection(Rejection::kDeadline);
  return deadline_response();
}

void RequestHandler::finish() {
  queue_.close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

void RequestHandler::run() {
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
    } else if (jobs.front()->kind == JobKind::kRecommend) {
      constexpr int kMaxAttempts = 3;
      for (int i = 0; i < kMaxAttempts && !jobs.empty(); ++i) {
        jobs = recommend(std::move(jobs));
      }
      for (const JobPtr& job : jobs) {
        job->reply(busy_response(
            "New versions arrived during the request. Try again."));
      }
    } else {
      jobs.front()->reply(look_up(*jobs.front()));
    }
  }
}

HttpResponse RequestHandler::look_up(const Job& job) {
  try {
    const std::shared_ptr<const Version> version = reader_->version();
    LookupAnswer answer = answer_lookup(job.body, context_of(*version));
    metrics_.add(Counter::kLookups, static_cast<int64_t>(answer.ids));
    return {.body = std::move(answer.body)};
  } catch (...) {
    return response_of_exception();
  }
}

RequestContext RequestHandler::context_of(const Version& version, bool waits) {
  const PipelineCache::Future read = pipelines_.pipeline_of(version);
  const bool has_read = waits || PipelineCache::is_ready(read);
  const PipelineOfVersion found = has_read ? read.get() : PipelineOfVersion();
  return {
      .version = version,
      .options = options_,
      .pipeline = found.pipeline,
      .problem = found.problem,
      .is_reading = !has_read && !version.pipeline().empty(),
      .inputs =
          options_.inputs ? options_.inputs() : std::vector<ScoreInputInfo>()};
}

std::shared_ptr<const Version> RequestHandler::version_of_functions() const {
  std::shared_ptr<const Version> version =
      options_.version ? options_.version() : reader_->version();
  TESSERA_CHECK(
      version != nullptr,
      "[ServerOptions] version: the function returned nullptr. Return the version that the functions use.");
  return version;
}

std::shared_ptr<const Version> RequestHandler::version_of_items() const {
  std::shared_ptr<const Version> version = version_of_functions();
  if (version->impl().items == nullptr) {
    throw NotServed(fmt::format(
        "Version {} has no items to recommend. Publish it with PublishOptions::items.",
        version->number()));
  }
  if (!version->query_program().empty() && !options_.query) {
    throw NotServed(
        "This server can't run the program that gives the vectors of users. Make it with a ProgramScorer.");
  }
  return version;
}

// A score function may take a new version after the request was read. Returns whether this
// version has the same pipeline.
bool RequestHandler::has_pipeline_of(
    const RequestContext& context,
    int64_t version) {
  if (context.pipeline == nullptr || version == 0 ||
      version == context.version.number()) {
    return true;
  }
  const std::shared_ptr<const Version> newest = version_of_functions();
  const auto other = pipelines_.pipeline_of(*newest).get().pipeline;
  return newest->number() == version && other != nullptr &&
      other->checksum == context.pipeline->checksum;
}

void RequestHandler::score(std::vector<JobPtr> jobs) {
  std::shared_ptr<const Version> version;
  std::optional<RequestContext> context;
  std::vector<ScoreRequest> requests;
  std::erase_if(jobs, [&](const JobPtr& job) {
    try {
      if (!context) {
        version = version_of_functions();
        context.emplace(context_of(*version));
      }
      requests.push_back(
          read_score_request(job->body, *context, job->has_columns));
      return false;
    } catch (...) {
      job->reply(response_of_exception());
      return true;
    }
  });
  if (!jobs.empty()) {
    score_together(requests, jobs, *context);
  }
}

void RequestHandler::score_together(
    std::span<const ScoreRequest> requests,
    std::span<const JobPtr> jobs,
    const RequestContext& context) {
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
      score_together(requests.subspan(i, 1), jobs.subspan(i, 1), context);
    }
    return;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    HttpResponse response;
    try {
      if (jobs[i]->has_columns &&
          !has_pipeline_of(context, results[i].version)) {
        response = busy_response(
            "A version with another pipeline arrived during the request. Try again.");
      } else if (results[i].error.empty()) {
        response.body = write_score_result(results[i], requests[i]);
        metrics_.add(Counter::kCandidates, requests[i].num_candidates);
      } else {
        response = refusal(results[i].error);
      }
    } catch (...) {
      response = response_of_exception();
    }
    jobs[i]->reply(std::move(response));
  }
}

std::vector<JobPtr> RequestHandler::recommend(std::vector<JobPtr> jobs) {
  std::vector<JobPtr> interrupted;
  // Answers the job if the step fails, and returns whether it has failed.
  const auto fails = [&](const JobPtr& job, auto step) {
    try {
      step();
      return false;
    } catch (const VersionChanged&) {
      interrupted.push_back(job);
    } catch (...) {
      job->reply(response_of_exception());
    }
    return true;
  };

  std::shared_ptr<const Version> version;
  std::optional<RecommendContext> context;
  std::vector<RecommendBody> bodies;
  std::vector<ItemSearch::Query> queries;
  const auto read = [&](const JobPtr& job) {
    if (!context) {
      version = version_of_items();
      context.emplace(context_of(*version), score_ != nullptr);
    }
    RecommendBody body = context->read(job->body);
    const std::function<std::vector<float>()> query = [&] {
      const ScoreRequest user{
          .user = select_inputs(body.inputs, context->query_inputs)};
      return call(options_.query, user, context->search.dim(), *version);
    };
    const bool has_query = context->has_query && !body.inputs.empty();
    queries.push_back(
        context->search.prepare(body.request, has_query ? query : nullptr));
    bodies.push_back(std::move(body));
  };
  std::erase_if(
      jobs, [&](const JobPtr& job) { return fails(job, [&] { read(job); }); });

  std::vector<std::vector<ScoredRow>> found;
  const auto answer = [&](size_t i) {
    const int64_t num_candidates = context->num_candidates;
    if (found.empty()) {
      metrics_.count_batch(queries.size());
      found = context->search.search(queries, num_candidates);
    }
    const ItemSearch::Query& query = queries[i];
    std::vector<ScoredRow>& rows = found[i];
    const bool are_ranked = num_candidates > 0 && !rows.empty() &&
        query.from != RecommendedFrom::kPopularity;
    if (are_ranked) {
      const auto size = std::max(query.request.k, num_candidates);
      rows.resize(std::min(rows.size(), static_cast<size_t>(size)));
      const std::vector<float> scores = call(
          score_,
          context->score_request(bodies[i], rows),
          std::ssize(rows),
          *version);
      for (size_t row = 0; row < rows.size(); ++row) {
        rows[row].score = scores[row];
      }
      sort_by_score(rows);
      metrics_.add(Counter::kCandidates, std::ssize(rows));
    }
    const RecommendResult result =
        context->search.result(query, std::move(rows), are_ranked);
    std::string body = context->write(bodies[i], result);
    metrics_.add(Counter::kItems, std::ssize(result.ids));
    jobs[i]->reply({.body = std::move(body)});
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    fails(jobs[i], [&] { answer(i); });
  }
  return interrupted;
}

}  // namespace tessera::serving
