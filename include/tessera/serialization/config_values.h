// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the configs of embeddings look in JSON. Options that hold such configs use this.

#include <tessera/common/json.h>
#include <tessera/engine/checkpoint_options.h>
#include <tessera/engine/strategy.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>
#include <tessera/tables/dynamic_keys.h>
#include <tessera/tables/initializer.h>
#include <tessera/tables/table_config.h>

#include <c10/core/ScalarType.h>

#include <concepts>
#include <string>

namespace tessera {

/// "sum", "mean" or "sqrtn".
template <>
struct JsonValue<Combiner> {
  static Json write(Combiner value);
  static Combiner read(const Json& json, const std::string& where);
};

/// "float32", "bfloat16" or "float16".
template <>
struct JsonValue<at::ScalarType> {
  static Json write(at::ScalarType value);
  static at::ScalarType read(const Json& json, const std::string& where);
};

/// "error" or "zero".
template <>
struct JsonValue<OutOfRange> {
  static Json write(OutOfRange value);
  static OutOfRange read(const Json& json, const std::string& where);
};

template <class T>
concept TwoValuedOption = std::same_as<T, Apply> ||
    std::same_as<T, NonFiniteGradients> || std::same_as<T, MissingSlots>;

/// "in_backward" or "on_step"; "apply" or "refuse"; "error" or "keep".
template <TwoValuedOption T>
struct JsonValue<T> {
  static Json write(T value);
  static T read(const Json& json, const std::string& where);
};

extern template struct JsonValue<Apply>;
extern template struct JsonValue<NonFiniteGradients>;
extern template struct JsonValue<MissingSlots>;

/// `{"class_name": "engine", "config": {...}}`. A sharded strategy is null, because JSON
/// can't hold its processes. null is read as the engine.
template <>
struct JsonValue<Strategy> {
  static Json write(const Strategy& value);
  static Strategy read(const Json& json, const std::string& where);
};

template <class T>
concept VariantOption = std::same_as<T, Initializer> ||
    std::same_as<T, Admission> || std::same_as<T, Eviction>;

/// `{"class_name": "Normal", "config": {...}}`, with the name of the alternative.
template <VariantOption T>
struct JsonValue<T> {
  static Json write(const T& value);
  static T read(const Json& json, const std::string& where);
};

extern template struct JsonValue<Initializer>;
extern template struct JsonValue<Admission>;
extern template struct JsonValue<Eviction>;

/// The features with the tables that they share. config_json.h shows the format.
template <>
struct JsonValue<Nest<FeatureConfig>> {
  static Json write(const Nest<FeatureConfig>& value);
  static Nest<FeatureConfig> read(const Json& json, const std::string& where);
};

/// A list of sizes, such as `[null, 64]`. null is an unknown dimension.
template <>
struct JsonValue<PartialShape> {
  static Json write(const PartialShape& value);
  static PartialShape read(const Json& json, const std::string& where);
};

/// `[null, 64]` for one shape. Several shapes are a list or an object.
template <>
struct JsonValue<Nest<PartialShape>> {
  static Json write(const Nest<PartialShape>& value);
  static Nest<PartialShape> read(const Json& json, const std::string& where);
};

}  // namespace tessera
