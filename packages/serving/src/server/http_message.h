// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::serving {

struct HttpRequest {
  std::string method = {};
  /// The path in the URL, without '?' and what follows.
  std::string path = {};
  std::string body = {};
  /// How the body is compressed. Empty: not at all.
  std::string content_encoding = {};
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  /// More header lines, each with its "\r\n".
  std::string headers = {};
  /// Whether the connection closes after this response.
  bool closes = false;
};

/// JSON as text for a client. Bytes that are not UTF-8, as a path may have, are replaced.
inline std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Appends a list with the shortest texts that a parser reads as the same floats. A number
/// that is not finite becomes "null", because JSON has no text for it. The float -0 becomes
/// "-0.0", because a parser would read "-0" as an integer, which has no sign.
inline void append_numbers(std::string& text, std::span<const float> numbers) {
  text += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float number = numbers[i];
    text += i == 0 ? "" : ",";
    if (!std::isfinite(number)) {
      text += "null";
      continue;
    }
    constexpr size_t kMaxLength = 32;  // the longest is -1.17549435e-38
    std::array<char, kMaxLength> digits;
    const std::to_chars_result end =
        std::to_chars(digits.data(), digits.data() + digits.size(), number);
    text.append(digits.data(), end.ptr);
    if (number == 0.0F && std::signbit(number)) {
      text += ".0";
    }
  }
  text += ']';
}

/// The response {"error": problem}, with more header lines.
inline HttpResponse error_response(
    int status,
    std::string_view problem,
    std::string headers = {}) {
  return {
      .status = status,
      .body = text_of(Json{{"error", std::string(problem)}}),
      .headers = std::move(headers)};
}

/// The response with status 503 that asks the client to try again.
inline HttpResponse busy_response(std::string_view problem) {
  return error_response(503, problem, "Retry-After: 1\r\n");
}

/// Writes a problem of the server to stderr, once per second at most, so that a client
/// can't fill a disk with it.
inline void log_error(std::string_view problem) {
  using Clock = std::chrono::steady_clock;
  static std::mutex mutex;
  static Clock::time_point next;
  static int64_t skipped = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  const Clock::time_point now = Clock::now();
  if (now < next) {
    ++skipped;
    return;
  }
  next = now + std::chrono::seconds(1);
  const std::string others =
      skipped == 0 ? "" : fmt::format(" (and {} more problems)", skipped);
  skipped = 0;
  std::fputs(fmt::format("[Server] {}{}\n", problem, others).c_str(), stderr);
}

}  // namespace tessera::serving
