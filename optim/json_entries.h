// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/json_text.h>

#include <functional>
#include <string>
#include <string_view>

namespace tessera {

/// Visits the entries of the object that a text holds, in their order. Each is
/// dropped before the next is read, so an object of very many takes little memory.
/// That no key comes twice is known only after the last entry.
/// Errors:  as parse_json(), and for a text that holds no object.
void for_each_json_entry(
    std::string_view text,
    const std::string& where,
    const JsonLimits& limits,
    const std::function<void(const std::string& key, const Json& value)>&
        visit);

}  // namespace tessera
