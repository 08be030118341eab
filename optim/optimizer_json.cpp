// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizer_json.h>

#include <tessera/optim/optimizers.h>

#include "src/common/class_name.h"

namespace tessera {

namespace {

// The name in {"callable": name}.
std::string read_callable(const Json& json, const std::string& where) {
  check_known_keys(json, {"callable"}, where);
  return JsonValue<std::string>::read(
      field_of(json, "callable", where), where + ".callable");
}

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
    return write_class(value.variant(), class_name_of);
  } else if constexpr (Function<T>) {
    return value.is_set() ? Json{{"callable", value.name()}} : Json(nullptr);
  } else {
    return write_class(value, class_name_of);
  }
}

template <class T>
T detail::OptimizerJson<T>::read(const Json& json, const std::string& where) {
  if constexpr (std::is_same_v<T, optim::LearningRate>) {
    return read_rate(json, where);
  } else if constexpr (std::is_same_v<T, optim::OptimizerSpec>) {
    return std::visit(
        [](const auto& spec) { return T(spec); },
        read_class<optim::AllSpecs>(json, class_name_of, where));
  } else if constexpr (Function<T>) {
    return json.is_null() ? T() : T(read_callable(json, where), nullptr);
  } else {
    return read_class<T>(json, class_name_of, where);
  }
}

template struct detail::OptimizerJson<optim::LearningRate>;
template struct detail::OptimizerJson<optim::SlotCreation>;
template struct detail::OptimizerJson<optim::CustomRule>;
template struct detail::OptimizerJson<optim::Schedule>;
template struct detail::OptimizerJson<optim::PlainSchedule>;
template struct detail::OptimizerJson<optim::OptimizerSpec>;

}  // namespace tessera
