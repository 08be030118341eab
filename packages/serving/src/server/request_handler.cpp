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

// The seconds since the version was published.
double age_of(const Version& version) {
  const std::chrono::duration<double> now =
      std::chrono::system_clock::now().time_since_epoch();
  return now.count() - version.time();
}

// The id or number of a missing value, or null if it has none of its own.
Json default_of(const data::Transform& transform) {
  return std::visit(
      [](const auto& of) -> Json {
        if constexpr (requires { of.missing_value; }) {
          return of.missing_value;
        } else {
          return of.missing == data::Missing::kOwnId ? Json(0) : Json();
        }
      },
      transform);
}

std::string version_text(
    const RequestContext& context,
    const ReaderStatus& status,
    Json recommend) {
  const Version& version = context.version;
  Json metrics = Json::object();
  for (const auto& [name, value] : version.metrics()) {
    metrics[name] = value;
  }
  Json features = Json::array();
  for (const Version::FeatureInfo& feature : version.features()) {
    features.push_back(
        {{"name", feature.name},
         {"table", feature.table},
         {"dim", feature.dim},
         {"combiner", feature.combiner},
         {"sequence_length", feature.sequence_length}});
  }
  Json tables = Json::array();
  for (const Version::TableInfo& table : version.tables()) {
    tables.push_back(
        {{"name", table.name},
         {"dim", table.dim},
         {"format", table.format},
         {"rows", table.rows},
         {"overlaid_rows", table.overlaid_rows},
         {"has_keys", table.has_keys},
         {"vocabulary_size", table.vocabulary_size}});
  }
  const auto made = context.made();
  Json inputs = Json::array();
  // The sides of columns. One is of the user if an input of the user needs it.
  Json sides = Json::object();
  for (const ScoreInputInfo& input : context.inputs) {
    const char* side = input.is_of_user ? "user" : "candidates";
    Json& shown = inputs.emplace_back(Json{
        {"name", input.name},
        {"side", side},
        {"values", input.width == 0 ? "ids" : "numbers"},
        {"width", input.width}});
    if (const auto* feature = find_named(version.features(), input.name)) {
      shown["vocabulary_size"] =
          version.tables()[version.table(feature->table)].vocabulary_size;
    }
    if (const auto* of = find_named(made, input.name)) {
      shown["default"] =
          of->transform == nullptr ? Json() : default_of(*of->transform);
      shown["columns"] = of->columns;
      for (const std::string& column : of->columns) {
        if (input.is_of_user || !sides.contains(column)) {
          sides[column] = side;
        }
      }
    }
  }
  constexpr std::array kTypes{
      "int64", "float32", "text", "uint64_bits", "numbers", "unknown"};
  Json columns = context.is_reading ? Json() : Json::array();
  if (context.pipeline != nullptr) {
    for (const PipelineColumn& column : context.pipeline->columns) {
      columns.push_back(
          {{"name", column.name},
           {"type", kTypes.at(static_cast<size_t>(column.type))},
           {"lists", column.takes_lists},
           {"side", sides.value(column.name, Json())}});
    }
  }
  return text_of(
      {{"version", version.number()},
       {"base", version.base()},
       {"step", version.step()},
       {"time", version.time()},
       {"age_seconds", age_of(version)},
       {"metrics", std::move(metrics)},
       {"newest", status.newest},
       {"pinned", status.is_pinned},
       {"taken", status.taken},
       {"problem", status.problem},
       {"inputs", std::move(inputs)},
       {"columns", std::move(columns)},
       {"recommend", std::move(recommend)},
       {"features", std::move(features)},
       {"tables", std::move(tables)}});
}

HttpResponse deadline_response() {
  return busy_response(
      "The request waited too long for a thread. Try again later.");
}

}  // namespace

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
    Json health{{"status", "ok"}, {"version", version->number()}};
    if (!status.problem.empty()) {
      health["problem"] = status.problem;
    }
    return {.body = text_of(health)};
  }
  if (path == "/version") {
    const RequestContext context = context_of(*version, /*waits=*/false);
    if (!context.problem.empty()) {
      status.problem = context.problem;
    }
    return {.body = version_text(context, status, describe_recommend(context))};
  }
  return {
      .body = metrics_.text(
          queue_.size(), *version, age_of(*version), status.taken),
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
      HttpResponse response;
      try {
        response.body = look_up(jobs.front()->body);
      } catch (...) {
        response = response_of_exception();
      }
      jobs.front()->reply(std::move(response));
    }
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

}  // namespace tessera::serving
