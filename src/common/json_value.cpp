// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/json_value.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/common/check.h"
#include "src/common/names.h"

namespace tessera {

namespace {

template <class AnyJson>
bool is_deeper_than(size_t depth, const AnyJson& json) {
  return json.is_structured() &&
      (depth == 0 ||
       std::any_of(json.begin(), json.end(), [&](const AnyJson& child) {
         return is_deeper_than(depth - 1, child);
       }));
}

template <class AnyJson>
void check_flat(const AnyJson& json, const char* where) {
  TESSERA_CHECK_VALUE(
      !is_deeper_than(kMaxJsonDepth, json),
      "[{}] the JSON must be at most {} levels deep, but is deeper. Nest it less deeply.",
      where,
      kMaxJsonDepth);
}

// Returns enough of a wrong value to recognise it in a message.
std::string excerpt(const Json& json) {
  if (is_deeper_than(kMaxJsonDepth, json)) {
    return "a value with too many levels of nesting";
  }
  return shorten(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Refuses a whole number that is too large for `range`. The parser turns whole numbers
// from 2^64 on into floating-point numbers.
void check_size(
    const Json& json,
    bool fits,
    const char* range,
    const std::string& where) {
  constexpr double kBeyondInt64 = 9223372036854775808.0;  // 2^63
  const bool is_too_large =
      !fits && json.is_number() && std::abs(json.get<double>()) >= kBeyondInt64;
  TESSERA_CHECK_VALUE(
      !is_too_large,
      "[{}] expected a whole number in the JSON, but got {}. It must be in {}.",
      where,
      excerpt(json),
      range);
}

}  // namespace

void check_depth(const Json& json, const char* where) {
  check_flat(json, where);
}

void check_depth(const nlohmann::json& json, const char* where) {
  check_flat(json, where);
}

void check_kind(
    bool is_valid,
    const Json& json,
    const char* expected,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      is_valid,
      "[{}] expected {} in the JSON, but got {}. Correct the value.",
      where,
      expected,
      excerpt(json));
}

void check_known_keys(
    const Json& json,
    const std::vector<std::string>& known,
    const std::string& where) {
  check_kind(json.is_object(), json, "an object", where);
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(known, key) != known.end()) {
      continue;
    }
    TESSERA_CHECK_VALUE(
        false,
        "[{}] unknown key '{}' in the JSON. Known: {}. Remove the key or correct its name.",
        where,
        shorten(key),
        join_names(known));
  }
}

void refuse_class_name(
    const std::string& name,
    const std::vector<std::string>& known,
    const std::string& where) {
  checks::fail<checks::ValueError>(
      {__func__, __FILE__, __LINE__},
      "[{}] class_name must be one of {}, but got '{}'. Correct the name.",
      where,
      shorten_all(known),
      shorten(name));
}

const Json& field_of(
    const Json& json,
    const char* key,
    const std::string& where) {
  check_kind(json.is_object(), json, "an object", where);
  TESSERA_CHECK_VALUE(
      json.contains(key),
      "[{}] missing key '{}' in the JSON {}. Add the key.",
      where,
      shorten(key),
      excerpt(json));
  return json.at(key);
}

template <class T>
Json detail::ScalarJson<T>::write(const T& value) {
  if constexpr (std::is_same_v<T, double>) {
    if (std::isinf(value)) {
      return value > 0 ? "inf" : "-inf";
    }
  }
  return value;
}

template <class T>
T detail::ScalarJson<T>::read(const Json& json, const std::string& where) {
  if constexpr (std::is_same_v<T, bool>) {
    check_kind(json.is_boolean(), json, "true or false", where);
  } else if constexpr (std::is_same_v<T, std::string>) {
    check_kind(json.is_string(), json, "a string", where);
  } else if constexpr (std::is_same_v<T, double>) {
    if (json == "inf" || json == "-inf") {
      const double infinity = std::numeric_limits<double>::infinity();
      return json == "inf" ? infinity : -infinity;
    }
    check_kind(json.is_number(), json, "a number", where);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    // An unsigned number above the maximum of int64 would wrap around.
    const bool fits = json.is_number_integer() &&
        (!json.is_number_unsigned() ||
         json.get<uint64_t>() <=
             static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    check_size(
        json, fits, "[-9223372036854775808, 9223372036854775807]", where);
    check_kind(fits, json, "a whole number", where);
  } else {
    const bool fits = json.is_number_unsigned() ||
        (json.is_number_integer() && json.get<int64_t>() >= 0);
    check_size(json, fits, "[0, 18446744073709551615]", where);
    check_kind(fits, json, "a whole number >= 0", where);
  }
  return json.get<T>();
}

template struct detail::ScalarJson<bool>;
template struct detail::ScalarJson<int64_t>;
template struct detail::ScalarJson<uint64_t>;
template struct detail::ScalarJson<double>;
template struct detail::ScalarJson<std::string>;

}  // namespace tessera
