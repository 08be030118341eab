// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_text.h>

#include <functional>
#include <string>
#include <string_view>

namespace tessera {

/// Parses a JSON object and visits its entries in order. Each entry is freed before the
/// next one is read, so large objects take little memory. Repeated keys are refused
/// only after the last entry has been visited.
/// Errors:  those of parse_json(), and c10::ValueError if the text is not an object.
void for_each_json_entry(
    std::string_view text,
    const std::string& where,
    const JsonLimits& limits,
    const std::function<void(const std::string& key, const Json& value)>&
        visit);

}  // namespace tessera
