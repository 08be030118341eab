// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/lookup_json.h"

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include "packages/serving/src/server/number_text.h"
#include "src/common/check.h"

#include <nlohmann/json.hpp>

#include <span>
#include <vector>

namespace tessera::serving {

namespace {

constexpr const char* kWhere = "/lookup";

// An answer has at most so many numbers, because each takes about ten bytes of text.
constexpr size_t kMaxNumbers = size_t{1} << 22;

struct LookupRequest {
  size_t feature = 0;
  std::vector<int64_t> ids = {};
  std::vector<int64_t> row_splits = {};
  std::vector<float> weights = {};

  FeatureBatch batch() const {
    return {.ids = ids, .row_splits = row_splits, .weights = weights};
  }
};

void check_list(
    const RequestValues& values,
    const Json& json,
    const char* name) {
  if (!json.is_array()) {
    values.refuse(json, name, "a list");
  }
}

// The weights have the shape of the ids.
void read_weights(
    const Json& weights,
    const Json& ids,
    RequestValues& values,
    LookupRequest& request) {
  constexpr const char* kName = "weights";
  const auto check_size = [&](size_t size, size_t expected) {
    TESSERA_CHECK_VALUE(
        size == expected,
        "[{}] weights: expected one weight per id, but got {} weights for {} ids.",
        kWhere,
        size,
        expected);
  };
  check_list(values, weights, kName);
  TESSERA_CHECK_VALUE(
      weights.empty() || has_lists(ids),
      "[{}] weights: expected none, because only lists of ids are combined with weights. Leave the weights out, or send a list of ids for each example.",
      kWhere);
  TESSERA_CHECK_VALUE(
      weights.size() == ids.size(),
      "[{}] weights: expected one list per list of ids, but got {} for {}.",
      kWhere,
      weights.size(),
      ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    check_list(values, weights[i], kName);
    check_size(weights[i].size(), ids[i].size());
    values.append_numbers(weights[i], kName, request.weights);
  }
}

LookupRequest read_lookup(
    const Json& json,
    const Version& version,
    RequestValues& values) {
  const Json& name = field_of(json, "feature", kWhere);
  if (!name.is_string()) {
    values.refuse(name, "feature", "the name of a feature");
  }
  LookupRequest request{.feature = version.feature(name.get<std::string>())};
  const FeatureInfo& feature = version.features()[request.feature];
  const Json& ids = field_of(json, "ids", kWhere);
  check_list(values, ids, "ids");
  TESSERA_CHECK_VALUE(
      feature.sequence_length == 0 || has_lists(ids),
      "[{}] ids: expected a list of ids for each example, such as [[3,1],[4]], because the feature '{}' is a sequence.",
      kWhere,
      shorten(feature.name));
  if (has_lists(ids)) {
    values.count(ids.size());
    request.row_splits.push_back(0);
    for (const Json& row : ids) {
      if (!row.is_array()) {
        values.refuse(row, "ids", "a list, as the first entry is");
      }
      values.append_ids(row, "ids", request.ids);
      request.row_splits.push_back(static_cast<int64_t>(request.ids.size()));
    }
  } else {
    values.append_ids(ids, "ids", request.ids);
  }
  if (json.contains("weights")) {
    read_weights(json["weights"], ids, values, request);
  }
  return request;
}

// Appends `count` vectors, [count, dim].
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

}  // namespace

LookupAnswer answer_lookup(
    std::string_view body,
    const Version& version,
    const RequestLimits& limits) {
  RequestValues values(kWhere, version, limits);
  const LookupRequest request = read_lookup(
      values.parse(body, {"feature", "ids", "weights"}), version, values);
  const FeatureInfo& feature = version.features()[request.feature];
  const size_t size = version.output_size(request.feature, request.batch());
  TESSERA_CHECK_VALUE(
      size <= kMaxNumbers,
      "[{}] expected at most {} numbers in the answer, but it would have {}. Send fewer ids in one request.",
      kWhere,
      kMaxNumbers,
      size);
  std::vector<float> out(size);
  version.lookup(request.feature, request.batch(), out);

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
  return {.body = std::move(text), .ids = request.ids.size()};
}

}  // namespace tessera::serving
