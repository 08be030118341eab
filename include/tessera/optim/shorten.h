// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A name from outside (a file, JSON, a user's map) as messages show it: whole up to
/// 200 bytes; of a longer one the beginning, the length and the end. A zero byte,
/// where a message would end, is written as "\0".
std::string shorten(std::string_view name);

/// Names, each shortened, with ", " between them; of more than 100 the first 100 and
/// how many follow.
std::string shorten_all(const std::vector<std::string>& names);

}  // namespace tessera
