// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace tessera {

/// A JSON value whose keys keep their order. A source that uses its members includes
/// `nlohmann/json.hpp`.
using Json = nlohmann::ordered_json;

// This is a class, because functions for variants would have to be found by their arguments,
// and this searches only the namespaces of the variant's alternatives.

/// Converts a T to and from JSON. json_value.h has it for every aggregate with
/// visit_fields(). Specialise it in this namespace for any other new type:
///
///   static Json write(const T& value);
///   static T read(const Json& json, const std::string& where);
///
/// Errors:  read() raises c10::ValueError; `where` is the path of the value.
template <class T>
struct JsonValue;

/// A type has it if T::visit_fields(object, visit) calls visit once for each field.
template <class T>
concept HasFields = requires(T& object) {
  T::visit_fields(object, [](const char*, auto&) {});
};

}  // namespace tessera
