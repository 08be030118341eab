// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>

#include "src/common/check.h"

#include <string>

namespace tessera {

/// Reads a name from `json` and returns what `from_string` makes of it.
/// Errors:  c10::ValueError if `json` is not a string; the c10::ValueError of
///          `from_string`, with `[where]` before its message.
template <class FromString>
auto read_name(
    const Json& json,
    FromString from_string,
    const std::string& where) {
  const std::string name = JsonValue<std::string>::read(json, where);
  try {
    return from_string(name);
  } catch (const checks::ValueError& error) {
    checks::fail<checks::ValueError>(
        {__func__, __FILE__, __LINE__},
        "[{}] {}",
        where,
        checks::message_of_error(error));
  }
}

}  // namespace tessera
