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

std::string name_of_plain(const optim::PlainSchedule& schedule) {
  return std::visit(
      [](const auto& decay) { return optim::name_of(optim::Schedule(decay)); },
      schedule);
}

optim::OptimizerSpec spec_of(const optim::AllSpecs& spec) {
  return std::visit(
      [](const auto& held) -> optim::OptimizerSpec { return held; }, spec);
}

constexpr auto kNameOf = []<class T>(const T& value) {
  if constexpr (std::is_same_v<T, optim::PlainSchedule>) {
    return name_of_plain(value);
  } else if constexpr (std::is_same_v<T, optim::Schedule>) {
    return optim::name_of(value);
  } else {
    return optim::name_of(spec_of(value));
  }
};

Json write_rate(const optim::LearningRate& rate) {
  if (const optim::Schedule* schedule = rate.schedule()) {
    return JsonValue<optim::Schedule>::write(*schedule);
  }
  if (!rate.is_constant()) {
    return {{"callable", rate.callable_name()}};
  }
  return JsonValue<double>::write(rate.value(0, "[LearningRate]"));
}

optim::LearningRate read_rate(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    return JsonValue<double>::read(json, where);
  }
  if (json.contains("class_name")) {
    return JsonValue<optim::Schedule>::read(json, where);
  }
  return optim::LearningRate::placeholder(read_callable(json, where));
}

template <class T>
concept Function = requires(const T& value) {
  value.is_set();
};

}  // namespace

template <class T>
Json detail::OptimizerJson<T>::write(const T& value) {
  if constexpr (std::is_same_v<T, optim::LearningRate>) {
    return write_rate(value);
  } else if constexpr (std::is_same_v<T, optim::OptimizerSpec>) {
    return write_class(value.variant(), kNameOf);
  } else if constexpr (Function<T>) {
    return value.is_set() ? Json{{"callable", value.name()}} : Json(nullptr);
  } else {
    return write_class(value, kNameOf);
  }
}

template <class T>
T detail::OptimizerJson<T>::read(const Json& json, const std::string& where) {
  if constexpr (std::is_same_v<T, optim::LearningRate>) {
    return read_rate(json, where);
  } else if constexpr (std::is_same_v<T, optim::OptimizerSpec>) {
    return spec_of(read_class<optim::AllSpecs>(json, kNameOf, where));
  } else if constexpr (Function<T>) {
    return json.is_null() ? T() : T(read_callable(json, where), nullptr);
  } else {
    return read_class<T>(json, kNameOf, where);
  }
}

template struct detail::OptimizerJson<optim::LearningRate>;
template struct detail::OptimizerJson<optim::SlotCreation>;
template struct detail::OptimizerJson<optim::CustomRule>;
template struct detail::OptimizerJson<optim::Schedule>;
template struct detail::OptimizerJson<optim::PlainSchedule>;
template struct detail::OptimizerJson<optim::OptimizerSpec>;

}  // namespace tessera
