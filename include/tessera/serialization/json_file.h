// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_text.h>

#include <string>

namespace tessera {

/// Parses a JSON file by the rules of parse_json().
/// Errors:  c10::Error for a file that can't be read; c10::ValueError as in
///          parse_json(). A file that is too large is refused before it is read. All
///          messages begin with `where` and name the path.
Json load_json(
    const std::string& path,
    const std::string& where = "[load_json]",
    const JsonLimits& limits = {});

}  // namespace tessera
