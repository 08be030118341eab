// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>

#include <c10/util/Exception.h>

#include <string>

namespace tessera {

/// Converts the name that `json` holds with `from_string`.
/// Errors:  c10::ValueError: the error of `from_string`, after `[where]`.
template <class FromString>
auto read_name(
    const Json& json,
    FromString from_string,
    const std::string& where) {
  const std::string name = JsonValue<std::string>::read(json, where);
  try {
    return from_string(name);
  } catch (const c10::ValueError& error) {
    C10_THROW_ERROR(
        ValueError, c10::str("[", where, "] ", error.what_without_backtrace()));
  }
}

}  // namespace tessera
