// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the configs of embeddings look in JSON. Options that hold such configs need this
// header.

#include <tessera/common/json_name.h>
#include <tessera/engine/checkpoint_options.h>
#include <tessera/engine/strategy.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>
#include <tessera/tables/dynamic_keys.h>
#include <tessera/tables/initializer.h>
#include <tessera/tables/table_config.h>

#include <c10/core/ScalarType.h>

#include <string>

namespace tessera {

/// "sum", "mean" or "sqrtn".
template <>
struct JsonValue<Combiner> : detail::JsonName<combiner_from_string> {};

/// "float32", "bfloat16" or "float16".
template <>
struct JsonValue<at::ScalarType> {
  static Json write(at::ScalarType value);
  static at::ScalarType read(const Json& json, const std::string& where);
};

/// "error" or "zero".
template <>
struct JsonValue<OutOfRange> : detail::JsonName<out_of_range_from_string> {};

/// "in_backward" or "on_step".
template <>
struct JsonValue<Apply> {
  static Json write(Apply value);
  static Apply read(const Json& json, const std::string& where);
};

/// "apply" or "refuse".
template <>
struct JsonValue<NonFiniteGradients> {
  static Json write(NonFiniteGradients value);
  static NonFiniteGradients read(const Json& json, const std::string& where);
};

/// "error" or "keep".
template <>
struct JsonValue<MissingSlots> {
  static Json write(MissingSlots value);
  static MissingSlots read(const Json& json, const std::string& where);
};

/// `{"class_name": "engine", "config": {...}}`. Files say "engine" for Strategy::fused()
/// and "dense" for Strategy::padded(). A sharded strategy is null, because JSON can't
/// hold its processes. null is read as Strategy::fused().
template <>
struct JsonValue<Strategy> {
  static Json write(const Strategy& value);
  static Strategy read(const Json& json, const std::string& where);
};

/// `{"class_name": "Normal", "config": {...}}`, with the name of the alternative.
template <>
struct JsonValue<Initializer> {
  static Json write(const Initializer& value);
  static Initializer read(const Json& json, const std::string& where);
};

/// The same form as for an Initializer.
template <>
struct JsonValue<Admission> {
  static Json write(const Admission& value);
  static Admission read(const Json& json, const std::string& where);
};

/// The same form as for an Initializer.
template <>
struct JsonValue<Eviction> {
  static Json write(const Eviction& value);
  static Eviction read(const Json& json, const std::string& where);
};

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
