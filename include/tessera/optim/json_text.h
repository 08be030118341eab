// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

/// Keys keep their order.
using Json = nlohmann::ordered_json;

/// Deeper than any config. Walking, copying and comparing JSON takes stack, and JSON
/// may come from anywhere.
inline constexpr size_t kMaxJsonDepth = 64;

/// How much JSON a reader takes.
struct JsonLimits {
  /// Of the text.
  size_t bytes = size_t{1} << 30;
  /// Brackets within each other.
  size_t depth = kMaxJsonDepth;
  /// Values of one list.
  size_t list_size = std::numeric_limits<size_t>::max();
};
static_assert(std::is_aggregate_v<JsonLimits>);

/// The value of a text from anywhere, for from_json(), pipeline_from_json() and all
/// else that reads a Json:
///
///   auto model = from_json<torch::nn::Sequential>(parse_json(text));
///
/// nlohmann's own parser takes the last of two equal keys and a zero byte for the end,
/// and a deeply nested text can overflow the stack. Here limits are checked before a
/// value is made, in time proportional to the text.
/// Errors:  c10::ValueError beginning with `where` and naming byte and line: for text
///          that is not JSON in UTF-8, has something behind its value, a zero byte or
///          an object with one key twice, or is larger or deeper than `limits`.
Json parse_json(
    std::string_view text,
    const std::string& where = "[parse_json]",
    const JsonLimits& limits = {});

}  // namespace tessera
