// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/json_text.h>

#include <string>

namespace tessera {

/// The value of a file of JSON, by the rules of parse_json().
/// Errors:  c10::Error for a file that can't be read; c10::ValueError as those of
///          parse_json(), for a file that is too large before any of it is read. All
///          begin with `where` and name the path.
Json load_json(
    const std::string& path,
    const std::string& where = "[load_json]",
    const JsonLimits& limits = {});

}  // namespace tessera
