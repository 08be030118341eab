// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace tessera {

/// A JSON value whose keys keep their order. A source that uses its members includes
/// `nlohmann/json.hpp`.
using Json = nlohmann::ordered_json;

// JsonValue is a class and not a set of functions. The compiler would look for the
// function of a std::variant only in std and in the namespaces of the alternatives.

/// Converts a T to and from JSON. json_value.h has a specialisation for every aggregate
/// with visit_fields(). Add one in this namespace for any other new type:
///
///   static Json write(const T& value);
///   static T read(const Json& json, const std::string& where);
///
/// Errors:  read() raises c10::ValueError; `where` is the path of the value.
template <class T>
struct JsonValue;

/// A type that lists its fields: T::visit_fields(object, visit) calls `visit` once for each
/// of them.
template <class T>
concept HasFields = requires(T& object) {
  T::visit_fields(object, [](const char*, auto&) {});
};

}  // namespace tessera
