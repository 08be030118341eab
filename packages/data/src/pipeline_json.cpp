// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/pipeline_core.h"

#include <tessera/common/json_name.h>
#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include "src/common/text.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace tessera {

template <>
struct JsonValue<data::Missing> : detail::JsonName<data::missing_from_string> {
};

template <>
struct JsonValue<data::ColumnType>
    : detail::JsonName<data::column_type_from_string> {};

}  // namespace tessera

namespace tessera::data {

namespace {

constexpr int64_t kFormatVersion = 2;

Json write_text(const std::string& text) {
  if (is_utf8(text)) {
    return text;
  }
  std::string digits;
  for (const char byte : text) {
    fmt::format_to(
        std::back_inserter(digits), "{:02x}", static_cast<unsigned char>(byte));
  }
  return {{"hex", digits}};
}

std::string read_hex(const Json& json, const std::string& where) {
  check_known_keys(json, {"hex"}, where);
  const std::string digits = JsonValue<std::string>::read(
      field_of(json, "hex", where), where + ".hex");
  std::string text(digits.size() / 2, '\0');
  bool is_valid = digits.size() % 2 == 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char* begin = digits.data() + 2 * i;
    unsigned char byte = 0;
    const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
    is_valid = is_valid && error == std::errc() && end == begin + 2;
    text[i] = static_cast<char>(byte);
  }
  check_kind(is_valid, json, "an even number of digits 0-9, a-f", where);
  return text;
}

std::string read_text(const Json& json, const std::string& where) {
  if (json.is_object()) {
    return read_hex(json, where);
  }
  std::string text = JsonValue<std::string>::read(json, where);
  check_kind(is_utf8(text), json, "valid UTF-8, or {\"hex\": ...}", where);
  return text;
}

// Passes the same `where` for all values, because there may be millions. The error adds
// the position of the wrong value.
template <class T, class Read>
std::vector<T> read_values(
    const Json& json,
    const std::string& where,
    Read read) {
  std::vector<T> values;
  values.reserve(json.size());
  for (const Json& item : json) {
    try {
      values.push_back(read(item, where));
    } catch (const checks::ValueError& error) {
      TESSERA_CHECK_VALUE(
          false,
          "{} It is value {}. The values must be all integers, or all text.",
          checks::message_of_error(error),
          values.size());
    }
  }
  return values;
}

}  // namespace

}  // namespace tessera::data

namespace tessera {

template <>
struct JsonValue<data::transforms::VocabularyValues> {
  static Json write(const data::transforms::VocabularyValues& values) {
    Json json = Json::array();
    if (const auto* text = std::get_if<std::vector<std::string>>(&values)) {
      for (const std::string& value : *text) {
        json.push_back(data::write_text(value));
      }
    } else {
      for (const int64_t value : std::get<std::vector<int64_t>>(values)) {
        json.push_back(value);
      }
    }
    return json;
  }
  static data::transforms::VocabularyValues read(
      const Json& json,
      const std::string& where) {
    check_kind(json.is_array(), json, "a list", where);
    if (!json.empty() && !json.front().is_number()) {
      return data::read_values<std::string>(json, where, data::read_text);
    }
    return data::read_values<int64_t>(json, where, JsonValue<int64_t>::read);
  }
};

template <>
struct JsonValue<data::Transform> {
  static Json write(const data::Transform& value) {
    return write_class(value, data::name_of);
  }
  static data::Transform read(const Json& json, const std::string& where) {
    return read_class<data::Transform>(json, data::name_of, where);
  }
};

}  // namespace tessera

namespace tessera::data {

Json write_pipeline(
    const std::vector<PipelineOutput>& outputs,
    const std::map<std::string, ColumnType>& types) {
  Json types_json = Json::object();
  for (const auto& [name, type] : types) {
    types_json[name] = JsonValue<ColumnType>::write(type);
  }
  return {
      {"format_version", kFormatVersion},
      {"types", types_json},
      {"outputs", JsonValue<std::vector<PipelineOutput>>::write(outputs)}};
}

PipelineDefinition read_pipeline(const Json& json) {
  check_depth(json, "pipeline");
  check_known_keys(json, {"format_version", "types", "outputs"}, "pipeline");
  const int64_t version = JsonValue<int64_t>::read(
      field_of(json, "format_version", "pipeline"), "pipeline.format_version");
  TESSERA_CHECK_VALUE(
      version >= 1 && version <= kFormatVersion,
      "[pipeline.format_version] expected 1 to {}, but got {}. Read it with the version of Tessera that wrote it.",
      kFormatVersion,
      version);
  const Json& list = field_of(json, "outputs", "pipeline");
  check_kind(list.is_array(), list, "a list", "pipeline.outputs");
  std::vector<PipelineOutput> outputs;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("pipeline.outputs[{}]", i);
    for (const char* key : {"name", "columns", "transform"}) {
      field_of(list[i], key, where);
    }
    outputs.push_back(JsonValue<PipelineOutput>::read(list[i], where));
  }
  std::map<std::string, ColumnType> types;
  if (json.contains("types")) {
    check_kind(
        json["types"].is_object(),
        json["types"],
        "an object",
        "pipeline.types");
    for (const auto& [name, type] : json["types"].items()) {
      types[name] = JsonValue<ColumnType>::read(
          type, fmt::format("pipeline.types.{}", shorten(name)));
    }
  }
  return {.outputs = std::move(outputs), .types = std::move(types)};
}

}  // namespace tessera::data
