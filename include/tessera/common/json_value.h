// SPDX-License-Identifier: Apache-2.0
#pragma once

// JSON for values and for aggregates with visit_fields(). The same list of fields is used
// to write, to read and to find unknown keys.

#include <tessera/common/json.h>
#include <tessera/common/json_text.h>
#include <tessera/common/shorten.h>

#include <nlohmann/json.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

/// Checks the depth of a value that does not come from parse_json(). That function makes
/// the same check itself.
/// Errors:  c10::ValueError for more than kMaxJsonDepth levels.
void check_depth(const Json& json, const char* where);
void check_depth(const nlohmann::json& json, const char* where);

/// Checks that a value is of the `expected` kind, such as "a list".
/// Errors:  c10::ValueError unless `is_valid`.
void check_kind(
    bool is_valid,
    const Json& json,
    const char* expected,
    const std::string& where);

/// Checks that an object has no other keys than `known`.
/// Errors:  c10::ValueError for a key that is not in `known`.
void check_known_keys(
    const Json& json,
    const std::vector<std::string>& known,
    const std::string& where);

/// Raises the error about a class name that is not in `known`.
/// Errors:  c10::ValueError.
[[noreturn]] void refuse_class_name(
    const std::string& name,
    const std::vector<std::string>& known,
    const std::string& where);

/// Returns `json[key]`.
/// Errors:  c10::ValueError if the key is missing.
const Json& field_of(
    const Json& json,
    const char* key,
    const std::string& where);
const Json& field_of(
    const Json&& json,
    const char* key,
    const std::string& where) = delete;

namespace detail {

template <class T, class... Others>
concept OneOf = (std::same_as<T, Others> || ...);

template <class T>
concept JsonScalar = OneOf<T, bool, int64_t, uint64_t, double, std::string>;

// The functions are not in the constrained JsonValue itself, because GCC 12 then does not
// export them.
template <class T>
struct ScalarJson {
  static Json write(const T& value);
  static T read(const Json& json, const std::string& where);
};

}  // namespace detail

/// JSON has no infinities, so they are the strings "inf" and "-inf".
template <detail::JsonScalar T>
struct JsonValue<T> : detail::ScalarJson<T> {};

template <class T>
struct JsonValue<std::vector<T>> {
  static Json write(const std::vector<T>& values) {
    Json json = Json::array();
    for (const T& value : values) {
      json.push_back(JsonValue<T>::write(value));
    }
    return json;
  }
  static std::vector<T> read(const Json& json, const std::string& where) {
    check_kind(json.is_array(), json, "a list", where);
    std::vector<T> values;
    for (const Json& item : json) {
      values.push_back(JsonValue<T>::read(item, where));
    }
    return values;
  }
};

/// An optional without a value is null.
template <class T>
struct JsonValue<std::optional<T>> {
  static Json write(const std::optional<T>& value) {
    return value ? JsonValue<T>::write(*value) : Json(nullptr);
  }
  static std::optional<T> read(const Json& json, const std::string& where) {
    if (json.is_null()) {
      return std::nullopt;
    }
    return JsonValue<T>::read(json, where);
  }
};

/// Writes `{"field": value, ...}` in the order of visit_fields().
template <class T>
Json write_fields(const T& object) {
  Json json = Json::object();
  T::visit_fields(object, [&](const char* name, const auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    json[name] = JsonValue<Field>::write(field);
  });
  return json;
}

/// Reads the fields of an aggregate. A field that the JSON lacks keeps its default.
/// Errors:  c10::ValueError for an unknown key or a value of the wrong kind.
template <class T>
T read_fields(const Json& json, const std::string& where) {
  T object;
  std::vector<std::string> known;
  T::visit_fields(
      object, [&](const char* name, const auto&) { known.emplace_back(name); });
  check_known_keys(json, known, where);
  T::visit_fields(object, [&](const char* name, auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    if (json.contains(name)) {
      field = JsonValue<Field>::read(json.at(name), where + "." + name);
    }
  });
  return object;
}

template <HasFields T>
struct JsonValue<T> {
  static Json write(const T& value) {
    return write_fields(value);
  }
  static T read(const Json& json, const std::string& where) {
    return read_fields<T>(json, where);
  }
};

/// Writes `{"class_name": name, "config": {fields}}` for the current alternative.
template <class Variant, class NameOf>
Json write_class(const Variant& value, NameOf name_of) {
  return std::visit(
      [&](const auto& object) -> Json {
        return {
            {"class_name", name_of(value)}, {"config", write_fields(object)}};
      },
      value);
}

/// Reads the alternative whose name is the class_name of the JSON.
/// Errors:  c10::ValueError listing the known names.
template <class Variant, class NameOf>
Variant read_class(const Json& json, NameOf name_of, const std::string& where) {
  check_known_keys(json, {"class_name", "config"}, where);
  const std::string name = JsonValue<std::string>::read(
      field_of(json, "class_name", where), where + ".class_name");
  const Json config = json.value("config", Json::object());
  std::optional<Variant> found;
  std::vector<std::string> known;
  const auto try_alternative = [&]<class T>(std::in_place_type_t<T>) {
    const std::string candidate = name_of(Variant(T{}));
    known.push_back(candidate);
    if (candidate == name) {
      found = read_fields<T>(config, where + "." + name);
    }
  };
  [&]<class... Ts>(std::in_place_type_t<std::variant<Ts...>>) {
    (try_alternative(std::in_place_type<Ts>), ...);
  }(std::in_place_type<Variant>);
  if (!found) {
    refuse_class_name(name, known, where);
  }
  return *found;
}

}  // namespace tessera
