// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_json.h"

#include "packages/serving/src/server/http_message.h"
#include "packages/serving/src/server/input_reader.h"
#include "src/common/check.h"

#include <nlohmann/json.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <utility>
#include <variant>
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

}  // namespace

LookupAnswer answer_lookup(
    std::string_view body,
    const RequestContext& context) {
  const Version& version = context.version;
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
  return {.body = std::move(text), .ids = ids.ids.size()};
}

ScoreRequest read_score_request(
    std::string_view body,
    const RequestContext& context,
    bool& has_columns) {
  InputReader reader(context);
  const Json json = reader.values().parse(body, {"user", "candidates"});
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

std::string write_score_result(
    const ScoreResult& result,
    const ScoreRequest& request) {
  check_numbers(result.scores, request.num_candidates);
  std::string text = fmt::format(R"({{"version":{},"scores":)", result.version);
  append_numbers(text, result.scores);
  text += '}';
  return text;
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

std::string health_text(const Version& version, const ReaderStatus& status) {
  Json health{{"status", "ok"}, {"version", version.number()}};
  if (!status.problem.empty()) {
    health["problem"] = status.problem;
  }
  return text_of(health);
}

double age_of(const Version& version) {
  const std::chrono::duration<double> now =
      std::chrono::system_clock::now().time_since_epoch();
  return now.count() - version.time();
}

}  // namespace tessera::serving
