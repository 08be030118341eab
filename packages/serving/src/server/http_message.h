// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <span>
#include <string>
#include <string_view>

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
std::string text_of(const Json& json);

/// Appends a list with the shortest texts that a parser reads as the same floats. A number
/// that is not finite becomes "null", because JSON has no text for it. The float -0 becomes
/// "-0.0", because a parser would read "-0" as an integer, which has no sign.
void append_numbers(std::string& text, std::span<const float> numbers);

/// The response {"error": problem}, with more header lines.
HttpResponse error_response(
    int status,
    std::string_view problem,
    std::string headers = {});

/// The response with status 503 that asks the client to try again.
HttpResponse busy_response(std::string_view problem);

/// The status line and the header of a response.
std::string head_of(const HttpResponse& response, bool keeps_alive);

/// Writes a problem of the server to stderr, once per second at most, so that a client
/// can't fill a disk with it.
void log_error(std::string_view problem);

}  // namespace tessera::serving
