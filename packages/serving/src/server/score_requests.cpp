// SPDX-License-Identifier: Apache-2.0
// How a RequestHandler answers /lookup and /score.

#include "packages/serving/src/server/input_reader.h"
#include "packages/serving/src/server/request_handler.h"
#include "src/common/check.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::serving {

namespace {

// An answer has at most so many numbers, because each takes about ten bytes of text.
constexpr size_t kMaxNumbers = size_t{1} << 22;

// Reads the weights, which must have the shape of the ids.
std::vector<float> read_weights(
    const Json& json,
    std::span<const Json> ids,
    RequestValues& values) {
  constexpr const char* kName = "weights";
  const std::span<const Json> weights = values.list_of(json, kName);
  TESSERA_CHECK_VALUE(
      weights.empty() || are_lists(ids),
      "weights: expected none, because only lists of ids are combined with weights. Leave the weights out, or send a list of ids for each example.");
  TESSERA_CHECK_VALUE(
      weights.size() == ids.size(),
      "weights: expected one list per list of ids, but got {} for {}.",
      weights.size(),
      ids.size());
  std::vector<float> numbers;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = values.list_of(weights[i], kName);
    TESSERA_CHECK_VALUE(
        row.size() == ids[i].size(),
        "weights: expected one weight per id, but got {} weights for {} ids.",
        row.size(),
        ids[i].size());
    values.append_numbers(row, kName, numbers);
  }
  return numbers;
}

// Appends the numbers as a list of vectors of `dim` numbers.
void append_vectors(
    std::string& text,
    std::span<const float> numbers,
    size_t dim) {
  text += '[';
  for (size_t i = 0; i < numbers.size(); i += dim) {
    text += i == 0 ? "" : ",";
    append_numbers(text, numbers.subspan(i, dim));
  }
  text += ']';
}

// Reads the body of a /score. An entry has raw values if the pipeline has a column of its
// name. Otherwise it has ids if the version has a feature of its name, or else numbers. What
// stands in the object "columns" is always raw, and what stands in "inputs" never is.
// Errors:  std::invalid_argument and std::out_of_range with a message for the client, and
//          PipelineProblem for raw values if the pipeline can't be read.
ScoreRequest read_score_request(
    std::string_view body,
    const RequestContext& context,
    bool& has_columns) {
  InputReader reader(context);
  const Json json = reader.parse(body, {"user", "candidates"});
  if (json.contains("user")) {
    check_kind(
        json["user"].is_object(),
        json["user"],
        "an object with the inputs of the user",
        kRequest);
    reader.read(json["user"], "user", /*is_of_user=*/true);
  }
  const Json& candidates = field_of(json, "candidates", kRequest);
  if (candidates.is_object()) {
    reader.read(candidates, "candidates", /*is_of_user=*/false);
  }
  has_columns = reader.has_columns();
  ScoreRequest request = reader.finish();
  TESSERA_CHECK_VALUE(
      request.num_candidates > 0,
      "candidates: expected an object with one list per input, such as {{\"movie\":[3,1,4]}}.");
  return request;
}

}  // namespace

void check_numbers(std::span<const float> numbers, int64_t count) {
  TESSERA_CHECK(
      std::ssize(numbers) == count,
      "a function gave {} numbers instead of {}",
      numbers.size(),
      count);
  for (const float number : numbers) {
    TESSERA_CHECK(std::isfinite(number), "a function gave {}", number);
  }
}

std::string RequestHandler::look_up(const std::string& body) {
  const std::shared_ptr<const Version> newest = reader_->version();
  const Version& version = *newest;
  const RequestContext context = context_of(version);
  RequestValues values(context);
  const Json json = values.parse(body, {"feature", "ids", "weights", "values"});
  const Json& name = field_of(json, "feature", kRequest);
  if (!name.is_string()) {
    values.refuse(name, "feature", "the name of a feature");
  }
  const size_t number = version.feature(name.get<std::string>());
  const Version::FeatureInfo& feature = version.features()[number];
  IdLists ids;
  std::vector<float> weights;
  if (json.contains("values")) {
    TESSERA_CHECK_VALUE(
        !json.contains("ids") && !json.contains("weights"),
        "expected either values, or ids with or without weights, but got both. Leave one of them out.");
    ids = read_raw_ids("values", json["values"], feature.name, context);
  } else {
    const auto rows = values.list_of(field_of(json, "ids", kRequest), "ids");
    values.count(are_lists(rows) ? rows.size() : 0);
    ids = values.read_id_rows(rows, "ids");
    if (json.contains("weights")) {
      weights = read_weights(json["weights"], rows, values);
    }
  }
  TESSERA_CHECK_VALUE(
      feature.sequence_length == 0 || !ids.row_splits.empty(),
      "ids: expected a list of ids for each example, such as [[3,1],[4]], because the feature '{}' is a sequence.",
      shorten(feature.name));
  const FeatureBatch batch = ids.batch(weights);
  const size_t size = version.output_size(number, batch);
  TESSERA_CHECK_VALUE(
      size <= kMaxNumbers,
      "expected at most {} numbers in the answer, but it would have {}. Send fewer ids in one request.",
      kMaxNumbers,
      size);
  std::vector<float> out(size);
  version.lookup(number, batch, out);

  constexpr size_t kBytesOfNumber = 12;
  const auto dim = static_cast<size_t>(feature.dim);
  std::string text;
  text.reserve(size * kBytesOfNumber + 100);
  text += fmt::format(
      R"({{"version":{},"feature":{},"dim":{},"vectors":)",
      version.number(),
      text_of(feature.name),
      dim);
  if (feature.sequence_length == 0) {
    append_vectors(text, out, dim);
  } else {
    const size_t example = static_cast<size_t>(feature.sequence_length) * dim;
    text += '[';
    for (size_t i = 0; i < size; i += example) {
      text += i == 0 ? "" : ",";
      append_vectors(text, std::span(out).subspan(i, example), dim);
    }
    text += ']';
  }
  text += '}';
  metrics_.add(Counter::kLookups, std::ssize(ids.ids));
  return text;
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
        check_numbers(results[i].scores, requests[i].num_candidates);
        response.body =
            fmt::format(R"({{"version":{},"scores":)", results[i].version);
        append_numbers(response.body, results[i].scores);
        response.body += '}';
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

}  // namespace tessera::serving
