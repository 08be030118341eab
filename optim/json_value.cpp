// SPDX-License-Identifier: Apache-2.0
#include "optim/json_value.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {

namespace {

// Enough of a wrong value to recognise it.
std::string excerpt(const Json& json) {
  constexpr size_t kLength = 80;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace)
      .substr(0, kLength);
}

}  // namespace

void require_kind(
    bool is_right,
    const Json& json,
    const char* expected,
    const std::string& where) {
  TORCH_CHECK_VALUE(
      is_right,
      "[",
      where,
      "] expected ",
      expected,
      " in the JSON, but got ",
      excerpt(json),
      ".");
}

void require_known_keys(
    const Json& json,
    const std::vector<std::string>& known,
    const std::string& where) {
  require_kind(json.is_object(), json, "an object", where);
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) {
      continue;
    }
    std::string list;
    for (const std::string& name : known) {
      list += (list.empty() ? "" : ", ") + name;
    }
    TORCH_CHECK_VALUE(
        false,
        "[",
        where,
        "] unknown key '",
        key,
        "' in the JSON. Known: ",
        list,
        ".");
  }
}

const Json& require_key(
    const Json& json,
    const char* key,
    const std::string& where) {
  require_kind(json.is_object(), json, "an object", where);
  TORCH_CHECK_VALUE(
      json.contains(key),
      "[",
      where,
      "] missing key '",
      key,
      "' in the JSON ",
      excerpt(json),
      ".");
  return json.at(key);
}

Json JsonValue<bool>::write(bool value) {
  return value;
}

bool JsonValue<bool>::read(const Json& json, const std::string& where) {
  require_kind(json.is_boolean(), json, "true or false", where);
  return json.get<bool>();
}

Json JsonValue<int64_t>::write(int64_t value) {
  return value;
}

int64_t JsonValue<int64_t>::read(const Json& json, const std::string& where) {
  // An unsigned number past int64 would wrap around.
  const bool fits = json.is_number_integer() &&
      (!json.is_number_unsigned() ||
       json.get<uint64_t>() <=
           static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  require_kind(fits, json, "a whole number", where);
  return json.get<int64_t>();
}

Json JsonValue<double>::write(double value) {
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  return value;
}

double JsonValue<double>::read(const Json& json, const std::string& where) {
  if (json == "inf" || json == "-inf") {
    const double infinity = std::numeric_limits<double>::infinity();
    return json == "inf" ? infinity : -infinity;
  }
  require_kind(json.is_number(), json, "a number", where);
  return json.get<double>();
}

Json JsonValue<std::string>::write(const std::string& value) {
  return value;
}

std::string JsonValue<std::string>::read(
    const Json& json,
    const std::string& where) {
  require_kind(json.is_string(), json, "a string", where);
  return json.get<std::string>();
}

Json JsonValue<optim::LearningRate>::write(const optim::LearningRate& value) {
  if (!value.is_constant()) {
    return {{"callable", value.callable_name()}};
  }
  return JsonValue<double>::write(value.value("[LearningRate]"));
}

optim::LearningRate JsonValue<optim::LearningRate>::read(
    const Json& json,
    const std::string& where) {
  if (!json.is_object()) {
    return JsonValue<double>::read(json, where);
  }
  require_known_keys(json, {"callable"}, where);
  return optim::LearningRate::placeholder(JsonValue<std::string>::read(
      require_key(json, "callable", where), where + ".callable"));
}

Json JsonValue<optim::OptimizerSpec>::write(const optim::OptimizerSpec& value) {
  return write_class(value, optim::name_of);
}

optim::OptimizerSpec JsonValue<optim::OptimizerSpec>::read(
    const Json& json,
    const std::string& where) {
  return read_class<optim::OptimizerSpec>(json, optim::name_of, where);
}

}  // namespace tessera
