// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/score_json.h"

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include "packages/serving/src/server/number_text.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::serving {

namespace {

constexpr const char* kWhere = "/score";

class ScoreReader {
 public:
  ScoreReader(const Version& version, const RequestLimits& limits)
      : version_(version), values_(kWhere, version, limits) {}

  ScoreRequest read(std::string_view body) {
    const Json json = values_.parse(body, {"user", "candidates"});
    ScoreRequest request;
    if (json.contains("user")) {
      check_kind(
          json["user"].is_object(),
          json["user"],
          "an object with the inputs of the user",
          kWhere);
      for (const auto& [name, value] : json["user"].items()) {
        request.user.push_back(read_user(name, value));
      }
    }
    const Json& candidates = field_of(json, "candidates", kWhere);
    TESSERA_CHECK_VALUE(
        candidates.is_object() && !candidates.empty(),
        "[{}] candidates: expected an object with one list per input, such as {{\"movie\":[3,1,4]}}.",
        kWhere);
    for (const auto& [name, list] : candidates.items()) {
      check_candidates(request, name, list);
      request.num_candidates = static_cast<int64_t>(list.size());
      request.candidates.push_back(read_candidates(name, list));
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

  ScoreInput read_user(const std::string& name, const Json& value) {
    const std::string place = "user." + name;
    ScoreInput input{.name = name, .rows = 1, .has_numbers = !is_feature(name)};
    // A row with one value, or a list with the values of the row.
    if (input.has_numbers) {
      if (value.is_array()) {
        refuse_empty(value, place);
        values_.append_numbers(value, place, input.numbers);
      } else {
        values_.count(1);
        input.numbers.push_back(values_.read_number(value, place));
      }
    } else if (value.is_array()) {
      values_.append_ids(value, place, input.ids);
      input.row_splits = {0, static_cast<int64_t>(input.ids.size())};
    } else {
      values_.count(1);
      input.ids.push_back(values_.read_id(value, place));
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
        kWhere,
        shorten(name));
    if (!request.candidates.empty()) {
      TESSERA_CHECK_VALUE(
          static_cast<int64_t>(list.size()) == request.num_candidates,
          "[{}] candidates: expected one entry per candidate in each list, but '{}' has {} and '{}' has {}.",
          kWhere,
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
        kWhere,
        shorten(name));
  }

  ScoreInput read_candidates(const std::string& name, const Json& list) {
    const std::string place = "candidates." + name;
    ScoreInput input{
        .name = name,
        .rows = static_cast<int64_t>(list.size()),
        .has_numbers = !is_feature(name)};
    if (!has_lists(list)) {
      if (input.has_numbers) {
        values_.append_numbers(list, place, input.numbers);
      } else {
        values_.append_ids(list, place, input.ids);
      }
      return input;
    }
    values_.count(list.size());
    if (!input.has_numbers) {
      input.row_splits.push_back(0);
    }
    for (const Json& row : list) {
      if (!row.is_array()) {
        values_.refuse(row, place, "a list, as the first entry is");
      }
      if (input.has_numbers) {
        check_width(name, row.size(), list.front().size());
        values_.append_numbers(row, place, input.numbers);
      } else {
        values_.append_ids(row, place, input.ids);
        input.row_splits.push_back(static_cast<int64_t>(input.ids.size()));
      }
    }
    if (input.has_numbers) {
      refuse_empty(list.front(), place);
    }
    return input;
  }

  void check_width(const std::string& name, size_t width, size_t first) const {
    TESSERA_CHECK_VALUE(
        width == first,
        "[{}] candidates.{}: expected as many numbers for each candidate, but got {} and {}. Its values are numbers, because '{}' is not a feature; the features are {}.",
        kWhere,
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
        kWhere,
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
    const RequestLimits& limits) {
  return ScoreReader(version, limits).read(body);
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
