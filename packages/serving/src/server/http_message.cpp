// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/http_message.h"

#include <tessera/common/json.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tessera::serving {

namespace {

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

}  // namespace

HttpResponse error_response(int status, std::string_view problem) {
  // A message may quote bytes of the client that are not UTF-8.
  return {
      .status = status,
      .body = Json{{"error", std::string(problem)}}.dump(
          -1, ' ', false, Json::error_handler_t::replace)};
}

std::string head_of(const HttpResponse& response, bool keeps_alive) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Content-Type: {}\r\n"
      "Content-Length: {}\r\n"
      "Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Connection: {}\r\n"
      "{}\r\n",
      response.status,
      reason_of(response.status),
      response.content_type,
      response.body.size(),
      keeps_alive ? "keep-alive" : "close",
      response.headers);
}

}  // namespace tessera::serving
