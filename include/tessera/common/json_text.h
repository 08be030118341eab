// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

/// The maximum depth of JSON. No config is that deep. The limit protects the stack,
/// because JSON may come from an untrusted source, and functions that walk, copy or
/// compare it are recursive.
inline constexpr size_t kMaxJsonDepth = 64;

// snippet: tests/docs/reference_engine_test.cpp JsonLimits
/// The limits of the JSON that a reader accepts.
///
///   // Text from a client: at most 1 MiB, and no list of more than 100 values.
///   const Json request =
///       parse_json(text, "[request]", {.bytes = 1 << 20, .list_size = 100});
struct JsonLimits {
  /// Bytes of the text.
  size_t bytes = size_t{1} << 30;
  /// Levels of nested lists and objects.
  size_t depth = kMaxJsonDepth;
  /// Values in one list.
  size_t list_size = std::numeric_limits<size_t>::max();
};
static_assert(std::is_aggregate_v<JsonLimits>);

/// Parses a text that may come from an untrusted source. The result can be passed to
/// from_json(), pipeline_from_json() and all other functions that read a Json:
///
///   auto model = from_json<torch::nn::Sequential>(parse_json(text));
///
/// Unlike nlohmann's own parser, it refuses repeated keys and zero bytes, and checks
/// the limits before it makes a value. A deeply nested text therefore can't overflow
/// the stack.
/// Errors:  c10::ValueError that begins with `where` and names byte and line, for text
///          that is not JSON in UTF-8, has more text after its value, a zero byte or a
///          repeated key, or exceeds `limits`.
Json parse_json(
    std::string_view text,
    const std::string& where = "[parse_json]",
    const JsonLimits& limits = {});

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
