// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/json_value.h>

#include <tessera/optim/shorten.h>

#include <algorithm>
#include <cmath>
#include <limits>

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
void require_flat(const AnyJson& json, const char* where) {
  TORCH_CHECK_VALUE(
      !is_deeper_than(kMaxJsonDepth, json),
      "[",
      where,
      "] the JSON must be at most ",
      kMaxJsonDepth,
      " levels deep, but is deeper.");
}

// Enough of a wrong value to recognise it.
std::string excerpt(const Json& json) {
  if (is_deeper_than(kMaxJsonDepth, json)) {
    return "a value of too many levels";
  }
  return shorten(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The name in {"callable": name}.
std::string read_callable(const Json& json, const std::string& where) {
  require_known_keys(json, {"callable"}, where);
  return JsonValue<std::string>::read(
      require_key(json, "callable", where), where + ".callable");
}

}  // namespace

void check_depth(const Json& json, const char* where) {
  require_flat(json, where);
}

void check_depth(const nlohmann::json& json, const char* where) {
  require_flat(json, where);
}

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
        shorten(key),
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
      shorten(key),
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

Json JsonValue<uint64_t>::write(uint64_t value) {
  return value;
}

uint64_t JsonValue<uint64_t>::read(const Json& json, const std::string& where) {
  const bool fits = json.is_number_unsigned() ||
      (json.is_number_integer() && json.get<int64_t>() >= 0);
  require_kind(fits, json, "a whole number >= 0", where);
  return json.get<uint64_t>();
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
  if (const optim::Schedule* schedule = value.schedule()) {
    return JsonValue<optim::Schedule>::write(*schedule);
  }
  if (!value.is_constant()) {
    return {{"callable", value.callable_name()}};
  }
  return JsonValue<double>::write(value.value(0, "[LearningRate]"));
}

optim::LearningRate JsonValue<optim::LearningRate>::read(
    const Json& json,
    const std::string& where) {
  if (!json.is_object()) {
    return JsonValue<double>::read(json, where);
  }
  if (json.contains("class_name")) {
    return JsonValue<optim::Schedule>::read(json, where);
  }
  return optim::LearningRate::placeholder(read_callable(json, where));
}

namespace {

// null, or {"callable": name}, which reads as a placeholder.
template <class Function>
Json write_function(const Function& value) {
  return value.is_set() ? Json{{"callable", value.name()}} : Json(nullptr);
}

template <class Function>
Function read_function(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return {};
  }
  return {read_callable(json, where), nullptr};
}

}  // namespace

Json JsonValue<optim::SlotCreation>::write(const optim::SlotCreation& value) {
  return write_function(value);
}

optim::SlotCreation JsonValue<optim::SlotCreation>::read(
    const Json& json,
    const std::string& where) {
  return read_function<optim::SlotCreation>(json, where);
}

Json JsonValue<optim::CustomRule>::write(const optim::CustomRule& value) {
  return write_function(value);
}

optim::CustomRule JsonValue<optim::CustomRule>::read(
    const Json& json,
    const std::string& where) {
  return read_function<optim::CustomRule>(json, where);
}

Json JsonValue<optim::CustomSlot>::write(const optim::CustomSlot& value) {
  return write_fields(value);
}

optim::CustomSlot JsonValue<optim::CustomSlot>::read(
    const Json& json,
    const std::string& where) {
  return read_fields<optim::CustomSlot>(json, where);
}

namespace {

std::string name_of_plain(const optim::PlainSchedule& schedule) {
  return std::visit(
      [](const auto& decay) { return optim::name_of(optim::Schedule(decay)); },
      schedule);
}

}  // namespace

Json JsonValue<optim::Schedule>::write(const optim::Schedule& value) {
  return write_class(value, [](const optim::Schedule& schedule) {
    return optim::name_of(schedule);
  });
}

optim::Schedule JsonValue<optim::Schedule>::read(
    const Json& json,
    const std::string& where) {
  return read_class<optim::Schedule>(
      json,
      [](const optim::Schedule& schedule) { return optim::name_of(schedule); },
      where);
}

Json JsonValue<optim::PlainSchedule>::write(const optim::PlainSchedule& value) {
  return write_class(value, name_of_plain);
}

optim::PlainSchedule JsonValue<optim::PlainSchedule>::read(
    const Json& json,
    const std::string& where) {
  return read_class<optim::PlainSchedule>(json, name_of_plain, where);
}

namespace {

std::string name_of_optimizer(const optim::OptimizerSpec& optimizer) {
  return optim::name_of(optimizer);
}

}  // namespace

Json JsonValue<optim::OptimizerSpec>::write(const optim::OptimizerSpec& value) {
  return write_class(value, name_of_optimizer);
}

optim::OptimizerSpec JsonValue<optim::OptimizerSpec>::read(
    const Json& json,
    const std::string& where) {
  return read_class<optim::OptimizerVariant>(json, name_of_optimizer, where);
}

}  // namespace tessera
