// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/config_values.h>

#include <tessera/serialization/config_json.h>

#include "src/common/check.h"

#include <utility>

namespace tessera {

namespace {

std::string name_of(const Initializer& initializer) {
  constexpr const char* kNames[] = {
      "Zeros",
      "Constant",
      "Uniform",
      "Normal",
      "TruncatedNormal",
      "RowId",
      "Callable"};
  static_assert(std::size(kNames) == std::variant_size_v<Initializer>);
  return kNames[initializer.index()];
}

std::string name_of(const Admission& admission) {
  constexpr const char* kNames[] = {
      "EveryKey", "AfterOccurrences", "WithProbability"};
  static_assert(std::size(kNames) == std::variant_size_v<Admission>);
  return kNames[admission.index()];
}

std::string name_of(const Eviction& eviction) {
  constexpr const char* kNames[] = {
      "LeastRecentlyUsed", "LeastFrequentlyUsed", "OlderThan"};
  static_assert(std::size(kNames) == std::variant_size_v<Eviction>);
  return kNames[eviction.index()];
}

// The names of Strategy::fused() and Strategy::padded() in files of all versions.
constexpr const char* kFused = "engine";
constexpr const char* kPadded = "dense";

// An option with two values.
template <class T>
struct TwoNames {
  Json write(T value) const {
    return value == T{} ? first : second;
  }
  T read(const Json& json, const std::string& where) const {
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

  const char* first;
  const char* second;
};

constexpr TwoNames<Apply> kApply{"in_backward", "on_step"};
constexpr TwoNames<NonFiniteGradients> kNonFiniteGradients{"apply", "refuse"};
constexpr TwoNames<MissingSlots> kMissingSlots{"error", "keep"};

constexpr auto kNameOf = [](const auto& value) { return name_of(value); };

}  // namespace

Json JsonValue<at::ScalarType>::write(at::ScalarType value) {
  return to_string(value);
}

at::ScalarType JsonValue<at::ScalarType>::read(
    const Json& json,
    const std::string& where) {
  at::ScalarType dtype = {};
  detail::use_name(
      json,
      [&](const std::string& name) { dtype = dtype_from_string(name); },
      where);
  return dtype;
}

Json JsonValue<Apply>::write(Apply value) {
  return kApply.write(value);
}

Apply JsonValue<Apply>::read(const Json& json, const std::string& where) {
  return kApply.read(json, where);
}

Json JsonValue<NonFiniteGradients>::write(NonFiniteGradients value) {
  return kNonFiniteGradients.write(value);
}

NonFiniteGradients JsonValue<NonFiniteGradients>::read(
    const Json& json,
    const std::string& where) {
  return kNonFiniteGradients.read(json, where);
}

Json JsonValue<MissingSlots>::write(MissingSlots value) {
  return kMissingSlots.write(value);
}

MissingSlots JsonValue<MissingSlots>::read(
    const Json& json,
    const std::string& where) {
  return kMissingSlots.read(json, where);
}

Json JsonValue<Strategy>::write(const Strategy& value) {
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

Strategy JsonValue<Strategy>::read(const Json& json, const std::string& where) {
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

Json JsonValue<Initializer>::write(const Initializer& value) {
  return write_class(value, kNameOf);
}

Initializer JsonValue<Initializer>::read(
    const Json& json,
    const std::string& where) {
  return read_class<Initializer>(json, kNameOf, where);
}

Json JsonValue<Admission>::write(const Admission& value) {
  return write_class(value, kNameOf);
}

Admission JsonValue<Admission>::read(
    const Json& json,
    const std::string& where) {
  return read_class<Admission>(json, kNameOf, where);
}

Json JsonValue<Eviction>::write(const Eviction& value) {
  return write_class(value, kNameOf);
}

Eviction JsonValue<Eviction>::read(const Json& json, const std::string& where) {
  return read_class<Eviction>(json, kNameOf, where);
}

Json JsonValue<Nest<FeatureConfig>>::write(const Nest<FeatureConfig>& value) {
  return to_json(value);
}

Nest<FeatureConfig> JsonValue<Nest<FeatureConfig>>::read(
    const Json& json,
    const std::string& where) {
  try {
    return features_from_json(json);
  } catch (const c10::ValueError& error) {
    C10_THROW_ERROR(
        ValueError, c10::str("[", where, "] ", error.what_without_backtrace()));
  }
}

Json JsonValue<PartialShape>::write(const PartialShape& value) {
  return JsonValue<PartialShape::Sizes>::write(value);
}

PartialShape JsonValue<PartialShape>::read(
    const Json& json,
    const std::string& where) {
  return JsonValue<PartialShape::Sizes>::read(json, where);
}

Json JsonValue<Nest<PartialShape>>::write(const Nest<PartialShape>& value) {
  if (value.is_leaf()) {
    return JsonValue<PartialShape>::write(value.leaf());
  }
  Json json = value.is_list() ? Json::array() : Json::object();
  if (value.is_list()) {
    for (const Nest<PartialShape>& item : value.items()) {
      json.push_back(write(item));
    }
  } else {
    for (const auto& [key, child] : value.entries()) {
      json[key] = write(child);
    }
  }
  return json;
}

Nest<PartialShape> JsonValue<Nest<PartialShape>>::read(
    const Json& json,
    const std::string& where) {
  check_kind(json.is_structured(), json, "a shape or a nest of shapes", where);
  if (json.is_object()) {
    Nest<PartialShape>::Map entries;
    for (const auto& [key, child] : json.items()) {
      entries.emplace_back(key, read(child, where + "." + shorten(key)));
    }
    return Nest<PartialShape>::map(std::move(entries));
  }
  if (std::none_of(json.begin(), json.end(), [](const Json& item) {
        return item.is_structured();
      })) {
    return JsonValue<PartialShape>::read(json, where);
  }
  Nest<PartialShape>::List items;
  for (const Json& item : json) {
    items.push_back(read(item, c10::str(where, "[", items.size(), "]")));
  }
  return Nest<PartialShape>::list(std::move(items));
}

}  // namespace tessera
