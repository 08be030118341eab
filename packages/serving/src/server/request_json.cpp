// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_json.h"

#include <tessera/common/json_text.h>
#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include "packages/serving/src/server/http_message.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace tessera::serving {

namespace {

constexpr const char* kLookupWhere = "/lookup";

// An answer has at most so many numbers, because each takes about ten bytes of text.
constexpr size_t kMaxNumbers = size_t{1} << 22;

std::span<const Json> rows_of(const Json& list) {
  return list.get_ref<const Json::array_t&>();
}

// Whether the rows are lists, as the first row shows. False if there are no rows.
bool are_lists(std::span<const Json> rows) {
  return !rows.empty() && rows.front().is_array();
}

// Reads the lists of a request in JSON, and counts their values.
// Errors:  std::invalid_argument that begins with the path of the request and says where in
//          the JSON the wrong value is.
class RequestValues {
 public:
  // `where` is the path of the request, such as "/score".
  RequestValues(
      std::string where,
      const Version& version,
      const ServerOptions& options)
      : where_(std::move(where)),
        version_(version),
        options_(options),
        left_(options.max_ids) {}

  // The object in the text. It must not have other keys than `known`.
  Json parse(std::string_view text, const std::vector<std::string>& known) {
    // No request needs deeper JSON.
    constexpr size_t kDepth = 8;
    Json json = parse_json(
        text,
        "[" + where_ + "]",
        {.bytes = static_cast<size_t>(options_.max_body_bytes),
         .depth = kDepth,
         .list_size = static_cast<size_t>(options_.max_ids)});
    check_known_keys(json, known, where_);
    return json;
  }

  // Reads rows of one id or of a list of ids. The first row decides which. `name` is the
  // place in the JSON, such as "candidates.movie".
  IdLists read_id_rows(std::span<const Json> rows, const std::string& name) {
    IdLists read;
    const auto append = [&](std::span<const Json> ids) {
      count(ids.size());
      for (const Json& id : ids) {
        read.ids.push_back(read_id(id, name));
      }
    };
    if (!are_lists(rows)) {
      append(rows);
      return read;
    }
    read.row_splits.push_back(0);
    for (const Json& row : rows) {
      append(row_of(row, name));
      read.row_splits.push_back(std::ssize(read.ids));
    }
    return read;
  }

  // The entries of `json`. Refuses a value that is not a list.
  std::span<const Json> list_of(
      const Json& json,
      const std::string& name,
      const char* expected = "a list") const {
    if (!json.is_array()) {
      refuse(json, name, expected);
    }
    return rows_of(json);
  }
  // The entries of one of several rows.
  std::span<const Json> row_of(const Json& row, const std::string& name) const {
    return list_of(row, name, "a list, as the first entry is");
  }

  // Appends the numbers of a list that has no lists in it.
  void append_numbers(
      std::span<const Json> list,
      const std::string& name,
      std::vector<float>& numbers) {
    count(list.size());
    for (const Json& number : list) {
      numbers.push_back(read_number(number, name));
    }
  }

  // Counts values against the limit.
  void count(size_t values) {
    left_ -= static_cast<int64_t>(values);
    TESSERA_CHECK_VALUE(
        left_ >= 0,
        "[{}] expected at most {} ids, numbers and rows, but got more. Send fewer in one request.",
        where_,
        options_.max_ids);
  }

  // Refuses the value of `name`, which should be what `expected` says.
  [[noreturn]] void refuse(
      const Json& json,
      const std::string& name,
      std::string_view expected) const {
    const std::string got = json.is_array() ? "a list"
        : json.is_object()                  ? "an object"
                                            : shorten(text_of(json));
    checks::fail<checks::ValueError>(
        {__func__, __FILE__, __LINE__},
        "[{}] {}: expected {}, but got {}.{}",
        where_,
        shorten(name),
        expected,
        got,
        json.is_string() ? advice_for_text() : "");
  }

 private:
  int64_t read_id(const Json& json, const std::string& name) const {
    // nlohmann reads an integer beyond 64 bits as a floating point number.
    if (!json.is_number_integer() ||
        (json.is_number_unsigned() &&
         json.get<uint64_t>() >
             static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
      refuse(json, name, "an id, which is an integer from -2^63 to 2^63 - 1");
    }
    return json.get<int64_t>();
  }

  float read_number(const Json& json, const std::string& name) const {
    const double number = json.is_number() ? json.get<double>() : INFINITY;
    // Doubles from kEnd on round to infinity. The shortest text of the largest float,
    // 3.4028235e+38, is a little larger than that float as a double, but below kEnd.
    constexpr double kEnd = 0x1.ffffffp127;
    if (!(std::abs(number) < kEnd)) {
      refuse(json, name, "a number in the range of float32");
    }
    constexpr double kMax = std::numeric_limits<float>::max();
    return static_cast<float>(std::clamp(number, -kMax, kMax));
  }

  const char* advice_for_text() const {
    return version_.pipeline().empty()
        ? " The server takes no text, and this version has no pipeline. Send the ids and numbers with which the model was trained."
        : " The server takes no text. Apply the pipeline of this version in the client, and send its ids and numbers, as docs/serving.md shows under \"Raw values\".";
  }

  std::string where_;
  const Version& version_;
  const ServerOptions& options_;
  int64_t left_;
};

// Reads the weights, which must have the shape of the ids.
std::vector<float> read_weights(
    const Json& json,
    std::span<const Json> ids,
    RequestValues& values) {
  constexpr const char* kName = "weights";
  const std::span<const Json> weights = values.list_of(json, kName);
  TESSERA_CHECK_VALUE(
      weights.empty() || are_lists(ids),
      "[{}] weights: expected none, because only lists of ids are combined with weights. Leave the weights out, or send a list of ids for each example.",
      kLookupWhere);
  TESSERA_CHECK_VALUE(
      weights.size() == ids.size(),
      "[{}] weights: expected one list per list of ids, but got {} for {}.",
      kLookupWhere,
      weights.size(),
      ids.size());
  std::vector<float> numbers;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = values.list_of(weights[i], kName);
    TESSERA_CHECK_VALUE(
        row.size() == ids[i].size(),
        "[{}] weights: expected one weight per id, but got {} weights for {} ids.",
        kLookupWhere,
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
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i % dim == 0) {
      text += i == 0 ? "[" : "],[";
    } else {
      text += ',';
    }
    append_number(text, numbers[i]);
  }
  text += numbers.empty() ? "]" : "]]";
}

constexpr const char* kScoreWhere = "/score";

class ScoreReader {
 public:
  ScoreReader(const Version& version, const ServerOptions& options)
      : version_(version), values_(kScoreWhere, version, options) {}

  ScoreRequest read(std::string_view body) {
    const Json json = values_.parse(body, {"user", "candidates"});
    ScoreRequest request;
    if (json.contains("user")) {
      check_kind(
          json["user"].is_object(),
          json["user"],
          "an object with the inputs of the user",
          kScoreWhere);
      for (const auto& [name, value] : json["user"].items()) {
        request.user.push_back(
            read_input(name, "user." + name, std::span(&value, 1)));
      }
    }
    const Json& candidates = field_of(json, "candidates", kScoreWhere);
    TESSERA_CHECK_VALUE(
        candidates.is_object() && !candidates.empty(),
        "[{}] candidates: expected an object with one list per input, such as {{\"movie\":[3,1,4]}}.",
        kScoreWhere);
    for (const auto& [name, list] : candidates.items()) {
      check_candidates(request, name, list);
      request.num_candidates = static_cast<int64_t>(list.size());
      const auto rows = rows_of(list);
      values_.count(are_lists(rows) ? rows.size() : 0);
      request.candidates.push_back(
          read_input(name, "candidates." + name, rows));
    }
    return request;
  }

 private:
  bool is_feature(const std::string& name) const {
    const std::vector<Version::FeatureInfo>& features = version_.features();
    return std::any_of(
        features.begin(),
        features.end(),
        [&](const Version::FeatureInfo& feature) {
          return feature.name == name;
        });
  }

  // A row, of the user or of a candidate, is a value or a list of values. The input has ids
  // if a feature has its name.
  ScoreInput read_input(
      const std::string& name,
      const std::string& place,
      std::span<const Json> rows) {
    ScoreInput input{.name = name, .rows = std::ssize(rows)};
    if (is_feature(name)) {
      input.values = values_.read_id_rows(rows, place);
      return input;
    }
    auto& numbers = input.values.emplace<std::vector<float>>();
    if (!are_lists(rows)) {
      values_.append_numbers(rows, place, numbers);
      return input;
    }
    refuse_empty(rows.front(), place);
    for (const Json& row : rows) {
      const auto values = values_.row_of(row, place);
      check_width(name, values.size(), rows.front().size());
      values_.append_numbers(values, place, numbers);
    }
    return input;
  }

  void check_candidates(
      const ScoreRequest& request,
      const std::string& name,
      const Json& list) const {
    if (!list.is_array()) {
      values_.refuse(
          list, "candidates." + name, "a list with one entry per candidate");
    }
    TESSERA_CHECK_VALUE(
        !list.empty(),
        "[{}] candidates.{}: expected at least one candidate, but the list is empty.",
        kScoreWhere,
        shorten(name));
    if (!request.candidates.empty()) {
      TESSERA_CHECK_VALUE(
          static_cast<int64_t>(list.size()) == request.num_candidates,
          "[{}] candidates: expected one entry per candidate in each list, but '{}' has {} and '{}' has {}.",
          kScoreWhere,
          shorten(request.candidates.front().name),
          request.num_candidates,
          shorten(name),
          list.size());
    }
    TESSERA_CHECK_VALUE(
        std::none_of(
            request.user.begin(),
            request.user.end(),
            [&](const ScoreInput& input) { return input.name == name; }),
        "[{}] '{}' is an input of the user and of the candidates. Name each input once.",
        kScoreWhere,
        shorten(name));
  }

  void check_width(const std::string& name, size_t width, size_t first) const {
    TESSERA_CHECK_VALUE(
        width == first,
        "[{}] candidates.{}: expected as many numbers for each candidate, but got {} and {}. Its values are numbers, because '{}' is not a feature; the features are {}.",
        kScoreWhere,
        shorten(name),
        first,
        width,
        shorten(name),
        join_names(version_.features(), shortened_name));
  }

  // An input of numbers has at least one column.
  void refuse_empty(const Json& row, const std::string& place) const {
    TESSERA_CHECK_VALUE(
        !row.empty(),
        "[{}] {}: expected at least one number, but the list is empty. The features, which have ids, are {}.",
        kScoreWhere,
        shorten(place),
        join_names(version_.features(), shortened_name));
  }

  const Version& version_;
  RequestValues values_;
};

}  // namespace

LookupAnswer answer_lookup(
    std::string_view body,
    const Version& version,
    const ServerOptions& options) {
  RequestValues values(kLookupWhere, version, options);
  const Json json = values.parse(body, {"feature", "ids", "weights"});
  const Json& name = field_of(json, "feature", kLookupWhere);
  if (!name.is_string()) {
    values.refuse(name, "feature", "the name of a feature");
  }
  const size_t number = version.feature(name.get<std::string>());
  const Version::FeatureInfo& feature = version.features()[number];
  const auto rows = values.list_of(field_of(json, "ids", kLookupWhere), "ids");
  TESSERA_CHECK_VALUE(
      feature.sequence_length == 0 || are_lists(rows),
      "[{}] ids: expected a list of ids for each example, such as [[3,1],[4]], because the feature '{}' is a sequence.",
      kLookupWhere,
      shorten(feature.name));
  values.count(are_lists(rows) ? rows.size() : 0);
  const IdLists ids = values.read_id_rows(rows, "ids");
  const std::vector<float> weights = json.contains("weights")
      ? read_weights(json["weights"], rows, values)
      : std::vector<float>();
  const FeatureBatch batch = ids.batch(weights);
  const size_t size = version.output_size(number, batch);
  TESSERA_CHECK_VALUE(
      size <= kMaxNumbers,
      "[{}] expected at most {} numbers in the answer, but it would have {}. Send fewer ids in one request.",
      kLookupWhere,
      kMaxNumbers,
      size);
  std::vector<float> out(size);
  version.lookup(number, batch, out);

  constexpr size_t kBytesOfNumber = 12;
  const auto dim = static_cast<size_t>(feature.dim);
  std::string text;
  text.reserve(size * kBytesOfNumber + 100);
  text += "{\"version\":" + std::to_string(version.number());
  text += ",\"feature\":" + Json(feature.name).dump();
  text += ",\"dim\":" + std::to_string(dim);
  text += ",\"vectors\":";
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
    const Version& version,
    const ServerOptions& options) {
  return ScoreReader(version, options).read(body);
}

std::string write_score_result(
    const ScoreResult& result,
    const ScoreRequest& request) {
  TESSERA_CHECK(
      static_cast<int64_t>(result.scores.size()) == request.num_candidates,
      "the score function gave {} scores for {} candidates",
      result.scores.size(),
      request.num_candidates);
  std::string text = "{\"version\":" + std::to_string(result.version);
  text += ",\"scores\":[";
  for (size_t i = 0; i < result.scores.size(); ++i) {
    TESSERA_CHECK(
        std::isfinite(result.scores[i]),
        "the score function gave {} for candidate {}",
        result.scores[i],
        i);
    text += i == 0 ? "" : ",";
    append_number(text, result.scores[i]);
  }
  text += "]}";
  return text;
}

std::string version_text(
    const Version& version,
    const ReaderStatus& status,
    const std::vector<ScoreInputInfo>& score_inputs) {
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
  Json inputs = Json::array();
  for (const ScoreInputInfo& input : score_inputs) {
    inputs.push_back(
        {{"name", input.name},
         {"side", input.is_of_user ? "user" : "candidates"},
         {"values", input.width == 0 ? "ids" : "numbers"},
         {"width", input.width}});
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
