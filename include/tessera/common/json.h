// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace tessera {

/// Keys keep their order. A source that uses one includes <nlohmann/json.hpp>.
using Json = nlohmann::ordered_json;

/// How T looks in JSON. An aggregate with visit_fields() has it already, in
/// json_value.h; specialise it for any other new type:
///
///   static Json write(const T& value);
///   static T read(const Json& json, const std::string& where);
///
/// Errors:  read() raises c10::ValueError; `where` is the path of the value.
template <class T>
struct JsonValue;

/// Whether T::visit_fields(object, visit) names each of T's fields once.
template <class T>
concept HasFields = requires(T& object) {
  T::visit_fields(object, [](const char*, auto&) {});
};

}  // namespace tessera
