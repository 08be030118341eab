// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Shortens a name from outside, such as a file, JSON or a user's map, for a message.
/// Names of up to 200 bytes stay complete. For a longer name, the result has its
/// beginning, length and end. A zero byte, at which a message would end, is written as
/// "\0".
std::string shorten(std::string_view name);

/// Joins shortened names with ", ". If there are more than 100, the result has the
/// first 100 and the number of the others.
std::string shorten_all(const std::vector<std::string>& names);

}  // namespace tessera
