// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/score_json.h"

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include "packages/serving/src/server/http_message.h"
#include "packages/serving/src/server/request_values.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>

namespace tessera::serving {

namespace {

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
    const std::vector<FeatureInfo>& features = version_.features();
    return std::any_of(
        features.begin(), features.end(), [&](const FeatureInfo& feature) {
          return feature.name == name;
        });
  }

  // A user's row is a value or a list of values, and so is that of each candidate. The input
  // has ids if a feature has its name.
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

}  // namespace tessera::serving
