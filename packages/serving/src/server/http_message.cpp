// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/http_message.h"

#include <boost/beast/http/status.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <utility>

namespace tessera::serving {

namespace {

// The date of now in English, such as "Sun, 06 Nov 1994 08:49:37 GMT".
std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  return fmt::format("{:%a, %d %b %Y %T} GMT", *::gmtime_r(&now, &utc));
}

void append_number(std::string& text, float number) {
  if (!std::isfinite(number)) {
    text += "null";
    return;
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

}  // namespace

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void append_numbers(std::string& text, std::span<const float> numbers) {
  text += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    text += i == 0 ? "" : ",";
    append_number(text, numbers[i]);
  }
  text += ']';
}

HttpResponse error_response(
    int status,
    std::string_view problem,
    std::string headers) {
  return {
      .status = status,
      .body = text_of(Json{{"error", std::string(problem)}}),
      .headers = std::move(headers)};
}

HttpResponse busy_response(std::string_view problem) {
  return error_response(503, problem, "Retry-After: 1\r\n");
}

std::string head_of(const HttpResponse& response, bool keeps_alive) {
  namespace http = boost::beast::http;
  const auto reason = http::obsolete_reason(
      http::int_to_status(static_cast<unsigned>(response.status)));
  return fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Date: {}\r\n"
      "Content-Type: {}\r\n"
      "Content-Length: {}\r\n"
      "Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Connection: {}\r\n"
      "{}\r\n",
      response.status,
      std::string_view(reason.data(), reason.size()),
      date_text(),
      response.content_type,
      response.body.size(),
      keeps_alive ? "keep-alive" : "close",
      response.headers);
}

void log_error(std::string_view problem) {
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
