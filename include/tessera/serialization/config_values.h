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
#include <tessera/optim/learning_rate.h>
#include <tessera/tables/dynamic_keys.h>
#include <tessera/tables/initializer.h>
#include <tessera/tables/table_config.h>

#include <c10/core/ScalarType.h>

#include <string>
#include <variant>

namespace tessera {

/// "sum", "mean" or "sqrtn".
template <>
struct JsonValue<Combiner> : detail::JsonName<combiner_from_string> {};

/// "error" or "zero".
template <>
struct JsonValue<OutOfRange> : detail::JsonName<out_of_range_from_string> {};

namespace detail {

template <class T>
concept ConfigValue = optim::detail::kIsAlternative<
    T,
    std::variant<
        at::ScalarType,
        Apply,
        NonFiniteGradients,
        MissingSlots,
        Strategy,
        Initializer,
        Admission,
        Eviction,
        Nest<FeatureConfig>,
        PartialShape,
        Nest<PartialShape>>>;

// The functions are not in the constrained JsonValue itself, because GCC 12 would not export
// them there.
template <class T>
struct ConfigJson {
  static Json write(const T& value);
  static T read(const Json& json, const std::string& where);
};

}  // namespace detail

/// The JSON of the other parts of configs:
///
///   at::ScalarType       "float32", "bfloat16" or "float16"
///   Apply                "in_backward" or "on_step"
///   NonFiniteGradients   "apply" or "refuse"
///   MissingSlots         "error" or "keep"
///   Strategy             {"class_name": "engine", "config": {...}}. Files say "engine" for
///                        Strategy::fused() and "dense" for Strategy::padded(). A sharded
///                        strategy is null, because JSON can't hold its processes. null is
///                        read as Strategy::fused()
///   Initializer, Admission, Eviction
///                        {"class_name": "Normal", "config": {...}}, with the name of the
///                        alternative
///   Nest<FeatureConfig>  the features with the tables that they share. config_json.h shows
///                        the format
///   PartialShape         a list of sizes, such as [null, 64]. null is an unknown dimension
///   Nest<PartialShape>   [null, 64] for one shape. Several shapes are a list or an object
template <detail::ConfigValue T>
struct JsonValue<T> : detail::ConfigJson<T> {};

}  // namespace tessera
