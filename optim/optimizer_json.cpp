// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizer_json.h>

#include <tessera/optim/optimizers.h>

#include <string>
#include <variant>

namespace tessera {

namespace {

// The name in {"callable": name}.
std::string read_callable(const Json& json, const std::string& where) {
  check_known_keys(json, {"callable"}, where);
  return JsonValue<std::string>::read(
      field_of(json, "callable", where), where + ".callable");
}

// null, or {"callable": name}, which is read as a placeholder.
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

std::string name_of_plain(const optim::PlainSchedule& schedule) {
  return std::visit(
      [](const auto& decay) { return optim::name_of(optim::Schedule(decay)); },
      schedule);
}

optim::OptimizerSpec spec_of(const optim::AllSpecs& spec) {
  return std::visit(
      [](const auto& held) -> optim::OptimizerSpec { return held; }, spec);
}

std::string name_of_spec(const optim::AllSpecs& spec) {
  return optim::name_of(spec_of(spec));
}

}  // namespace

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

Json JsonValue<optim::OptimizerSpec>::write(const optim::OptimizerSpec& value) {
  return write_class(value.variant(), name_of_spec);
}

optim::OptimizerSpec JsonValue<optim::OptimizerSpec>::read(
    const Json& json,
    const std::string& where) {
  return spec_of(read_class<optim::AllSpecs>(json, name_of_spec, where));
}

}  // namespace tessera
