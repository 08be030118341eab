// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/lookup_json.h"

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include "packages/serving/src/server/http_message.h"
#include "packages/serving/src/server/request_values.h"
#include "src/common/check.h"

#include <nlohmann/json.hpp>

#include <span>
#include <vector>

namespace tessera::serving {

namespace {

constexpr const char* kLookupWhere = "/lookup";

// An answer has at most so many numbers, because each takes about ten bytes of text.
constexpr size_t kMaxNumbers = size_t{1} << 22;

std::span<const Json> checked_list(
    const RequestValues& values,
    const Json& json,
    const char* name) {
  if (!json.is_array()) {
    values.refuse(json, name, "a list");
  }
  return rows_of(json);
}

// The weights have the shape of the ids.
std::vector<float> read_weights(
    const Json& json,
    std::span<const Json> ids,
    RequestValues& values) {
  constexpr const char* kName = "weights";
  const std::span<const Json> weights = checked_list(values, json, kName);
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
    const auto row = checked_list(values, weights[i], kName);
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
    const ServerOptions& options) {
  RequestValues values(kLookupWhere, version, options);
  const Json json = values.parse(body, {"feature", "ids", "weights"});
  const Json& name = field_of(json, "feature", kLookupWhere);
  if (!name.is_string()) {
    values.refuse(name, "feature", "the name of a feature");
  }
  const size_t number = version.feature(name.get<std::string>());
  const FeatureInfo& feature = version.features()[number];
  const auto rows =
      checked_list(values, field_of(json, "ids", kLookupWhere), "ids");
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

}  // namespace tessera::serving
