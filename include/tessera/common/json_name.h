// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <functional>
#include <string>

namespace tessera::detail {

/// Calls `use` with the string in `json`.
/// Errors:  c10::ValueError if `json` is not a string. A c10::ValueError that `use`
///          raises is passed on, with `[where]` before its message.
void use_name(
    const Json& json,
    const std::function<void(const std::string&)>& use,
    const std::string& where);

/// An enum is its name in JSON, which to_string() writes and `from_string` reads.
/// `AnyJson` is a parameter because Json may be incomplete here.
template <auto from_string, class AnyJson = Json>
struct JsonName {
  using Value = decltype(from_string(std::string()));

  static AnyJson write(Value value) {
    return to_string(value);
  }
  static Value read(const AnyJson& json, const std::string& where) {
    Value value = {};
    use_name(
        json,
        [&](const std::string& name) { value = from_string(name); },
        where);
    return value;
  }
};

}  // namespace tessera::detail
