// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/config_values.h>

#include <tessera/common/json_value.h>
#include <tessera/serialization/config_json.h>

#include "src/common/check.h"
#include "src/common/class_name.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

namespace tessera {

namespace {

// The names of an enum's values in files.
template <class T>
constexpr std::array<const char*, 0> kNames{};
template <>
constexpr auto kNames<Apply> =
    std::to_array<const char*>({"in_backward", "on_step"});
template <>
constexpr auto kNames<NonFiniteGradients> =
    std::to_array<const char*>({"apply", "refuse"});
template <>
constexpr auto kNames<MissingSlots> =
    std::to_array<const char*>({"error", "keep"});

template <class T>
concept NamedEnum = std::is_enum_v<T> && !kNames<T>.empty();

template <class T>
concept NamedVariant = detail::OneOf<T, Initializer, Admission, Eviction>;

template <class T>
struct Read {};  // selects an overload of read_value()

template <NamedEnum T>
Json write_value(T value) {
  return kNames<T>[static_cast<size_t>(value)];
}

template <NamedEnum T>
T read_value(Read<T> /*type*/, const Json& json, const std::string& where) {
  static_assert(kNames<T>.size() == 2);
  const char* const first = kNames<T>[0];
  const char* const second = kNames<T>[1];
  const std::string name = JsonValue<std::string>::read(json, where);
  TESSERA_CHECK_VALUE(
      name == first || name == second,
      "[{}] expected {} or {}, but got '{}'.",
      where,
      first,
      second,
      shorten(name));
  return static_cast<T>(name == second);
}

template <NamedVariant T>
Json write_value(const T& value) {
  return write_class(value, class_name_of);
}

template <NamedVariant T>
T read_value(Read<T> /*type*/, const Json& json, const std::string& where) {
  return read_class<T>(json, class_name_of, where);
}

Json write_value(at::ScalarType value) {
  return to_string(value);
}

at::ScalarType read_value(
    Read<at::ScalarType> /*type*/,
    const Json& json,
    const std::string& where) {
  at::ScalarType dtype = {};
  detail::use_name(
      json,
      [&](const std::string& name) { dtype = dtype_from_string(name); },
      where);
  return dtype;
}

// The names of Strategy::fused() and Strategy::padded() in files of all versions.
constexpr const char* kFused = "engine";
constexpr const char* kPadded = "dense";

Json write_value(const Strategy& value) {
  const auto write_as = [](const char* name, Json config) {
    return Json{{"class_name", name}, {"config", std::move(config)}};
  };
  if (const auto* fused = std::get_if<Strategy::Fused>(&value.options())) {
    return write_as(kFused, {{"lookup_threads", fused->lookup_threads}});
  }
  if (const auto* host = std::get_if<Strategy::Host>(&value.options())) {
    return write_as("host", {{"sparse_gradients", host->sparse_gradients}});
  }
  return value.is_sharded() ? Json(nullptr) : write_as(kPadded, Json::object());
}

Strategy read_value(
    Read<Strategy> /*type*/,
    const Json& json,
    const std::string& where) {
  if (json.is_null()) {
    return Strategy::fused();
  }
  check_known_keys(json, {"class_name", "config"}, where);
  const std::string name = JsonValue<std::string>::read(
      field_of(json, "class_name", where), where + ".class_name");
  const Json config = json.value("config", Json::object());
  const std::string inner = where + "." + shorten(name);
  // Reads the only field that the config may have. `otherwise` is its default.
  const auto read_field = [&]<class Field>(const char* key, Field otherwise) {
    check_known_keys(config, {key}, inner);
    return config.contains(key)
        ? JsonValue<Field>::read(config.at(key), inner + "." + key)
        : otherwise;
  };
  if (name == kFused) {
    return Strategy::fused(
        {.lookup_threads = read_field("lookup_threads", int64_t{0})});
  }
  if (name == "host") {
    return Strategy::host(
        {.sparse_gradients = read_field("sparse_gradients", false)});
  }
  TESSERA_CHECK_VALUE(
      name == kPadded,
      "[{}] class_name must be one of {}, host, {}, but got '{}'.",
      where,
      kFused,
      kPadded,
      shorten(name));
  check_known_keys(config, {}, inner);
  return Strategy::padded();
}

Json write_value(const Nest<FeatureConfig>& value) {
  return to_json(value);
}

Nest<FeatureConfig> read_value(
    Read<Nest<FeatureConfig>> /*type*/,
    const Json& json,
    const std::string& where) {
  try {
    return features_from_json(json);
  } catch (const c10::ValueError& error) {
    C10_THROW_ERROR(
        ValueError, c10::str("[", where, "] ", error.what_without_backtrace()));
  }
}

Json write_value(const PartialShape& value) {
  return JsonValue<PartialShape::Sizes>::write(value);
}

PartialShape read_value(
    Read<PartialShape> /*type*/,
    const Json& json,
    const std::string& where) {
  return JsonValue<PartialShape::Sizes>::read(json, where);
}

Json write_value(const Nest<PartialShape>& value) {
  if (value.is_leaf()) {
    return write_value(value.leaf());
  }
  Json json = value.is_list() ? Json::array() : Json::object();
  if (value.is_list()) {
    for (const Nest<PartialShape>& item : value.items()) {
      json.push_back(write_value(item));
    }
  } else {
    for (const auto& [key, child] : value.entries()) {
      json[key] = write_value(child);
    }
  }
  return json;
}

Nest<PartialShape> read_value(
    Read<Nest<PartialShape>> type,
    const Json& json,
    const std::string& where) {
  check_kind(json.is_structured(), json, "a shape or a nest of shapes", where);
  if (json.is_object()) {
    Nest<PartialShape>::Map entries;
    for (const auto& [key, child] : json.items()) {
      entries.emplace_back(
          key, read_value(type, child, where + "." + shorten(key)));
    }
    return Nest<PartialShape>::map(std::move(entries));
  }
  if (std::ranges::none_of(json, &Json::is_structured)) {
    return JsonValue<PartialShape::Sizes>::read(json, where);
  }
  Nest<PartialShape>::List items;
  for (const Json& item : json) {
    items.push_back(
        read_value(type, item, c10::str(where, "[", items.size(), "]")));
  }
  return Nest<PartialShape>::list(std::move(items));
}

}  // namespace

template <class T>
Json detail::ConfigJson<T>::write(const T& value) {
  return write_value(value);
}

template <class T>
T detail::ConfigJson<T>::read(const Json& json, const std::string& where) {
  return read_value(Read<T>(), json, where);
}

template struct detail::ConfigJson<at::ScalarType>;
template struct detail::ConfigJson<Apply>;
template struct detail::ConfigJson<NonFiniteGradients>;
template struct detail::ConfigJson<MissingSlots>;
template struct detail::ConfigJson<Strategy>;
template struct detail::ConfigJson<Initializer>;
template struct detail::ConfigJson<Admission>;
template struct detail::ConfigJson<Eviction>;
template struct detail::ConfigJson<Nest<FeatureConfig>>;
template struct detail::ConfigJson<PartialShape>;
template struct detail::ConfigJson<Nest<PartialShape>>;

}  // namespace tessera
