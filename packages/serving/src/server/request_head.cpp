// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_head.h"

#include <tessera/common/shorten.h>

#include <boost/asio/ip/address_v6.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace tessera::serving {

namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kHexDigits = "0123456789ABCDEFabcdef";
// The characters of a host that stand for themselves.
constexpr std::string_view kHostCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+"
    ",;=";

std::string_view to_view(beast::string_view text) {
  return {text.data(), text.size()};
}

// The values of all fields with this name, as one list.
std::string list_of(const http::request_header<>& header, http::field name) {
  const auto [begin, end] = header.equal_range(name);
  std::string list;
  for (auto field = begin; field != end; ++field) {
    list += field == begin ? "" : ", ";
    list += to_view(field->value());
  }
  return list;
}

bool has_only(std::string_view text, std::string_view characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

bool is_name(std::string_view text) {
  for (size_t escape = text.find('%'); escape != std::string_view::npos;
       escape = text.find('%')) {
    const std::string_view digits = text.substr(escape + 1, 2);
    if (digits.size() != 2 || !has_only(digits, kHexDigits) ||
        !has_only(text.substr(0, escape), kHostCharacters)) {
      return false;
    }
    text.remove_prefix(escape + 3);
  }
  return has_only(text, kHostCharacters);
}

bool is_address_v6(std::string_view text) {
  boost::system::error_code error;
  boost::asio::ip::make_address_v6(std::string(text), error);
  return !error && has_only(text, "0123456789ABCDEFabcdef:.");
}

// Whether the text is that of RFC 9110, section 7.2: uri-host [ ":" port ].
bool is_host(std::string_view text) {
  const bool has_brackets =
      text.starts_with('[') && text.find(']') < text.size();
  const size_t end =
      has_brackets ? text.find(']') + 1 : std::min(text.find(':'), text.size());
  const std::string_view host = text.substr(0, end);
  const std::string_view port = text.substr(end);
  const bool has_host = has_brackets
      ? is_address_v6(host.substr(1, host.size() - 2))
      : is_name(host);
  return has_host &&
      (port.empty() ||
       (port.front() == ':' && has_only(port.substr(1), kDigits)));
}

// The path of a target in one of the four forms of RFC 9112, section 3.2, or
// nothing.
std::optional<std::string> path_of(
    std::string_view method,
    std::string_view target) {
  const bool has_path = target.starts_with('/') ||
      (method == "OPTIONS" && target == "*") ||
      (method == "CONNECT" && is_host(target));
  if (!has_path) {  // then it begins with "http://host"
    const std::string_view scheme = target.substr(0, target.find("://"));
    if (scheme.size() == target.size() ||
        !(beast::iequals({scheme.data(), scheme.size()}, "http") ||
          beast::iequals({scheme.data(), scheme.size()}, "https"))) {
      return std::nullopt;
    }
    target.remove_prefix(scheme.size() + 3);
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    const std::string_view host = target.substr(0, end);
    if (host.empty() || host.front() == ':' || !is_host(host)) {
      return std::nullopt;
    }
    target.remove_prefix(end);
  }
  const std::string_view path = target.substr(0, target.find('?'));
  return std::string(path.empty() ? "/" : path);
}

std::optional<HttpResponse> refuse_host(const http::request_header<>& header) {
  const size_t hosts = header.count(http::field::host);
  const std::string_view host = to_view(header[http::field::host]);
  const bool has_host =
      hosts == 1 ? is_host(host) : hosts == 0 && header.version() < 11;
  if (has_host) {
    return std::nullopt;
  }
  return error_response(
      400,
      hosts == 0
          ? "A request must have a Host header, but has none. Add one, such as 'Host: localhost'."
          : fmt::format(
                "A request must have one Host header with a name or an address, but has {} with the value '{}'. Correct it.",
                hosts,
                shorten(host)));
}

// Refuses every transfer coding except a single "chunked". With another one, bytes of the
// body would be left, and would be read as requests.
std::optional<HttpResponse> refuse_coding(
    const http::request_header<>& header) {
  const std::string codings = list_of(header, http::field::transfer_encoding);
  const bool is_right = header.count(http::field::transfer_encoding) == 0 ||
      (header.version() >= 11 && beast::iequals(codings, "chunked"));
  if (is_right) {
    return std::nullopt;
  }
  const http::token_list list(codings);
  const auto chunked =
      std::ranges::find_if(list, [](const beast::string_view& coding) {
        return beast::iequals(coding, "chunked");
      });
  // An unknown coding below "chunked" does not change where the body ends.
  const bool has_end = header.version() >= 11 && chunked != list.begin() &&
      chunked != list.end() && std::next(chunked) == list.end();
  return error_response(
      has_end ? 501 : 400,
      header.version() < 11
          ? "HTTP/1.0 has no Transfer-Encoding. Send a Content-Length."
          : fmt::format(
                "The Transfer-Encoding must be chunked, but is '{}'. Send a Content-Length.",
                shorten(codings)));
}

// The first encoding that changes the body.
std::string content_encoding_of(const http::request_header<>& header) {
  const auto [begin, end] = header.equal_range(http::field::content_encoding);
  for (auto field = begin; field != end; ++field) {
    const beast::string_view encoding = field->value();
    if (!encoding.empty() && !beast::iequals(encoding, "identity")) {
      return std::string(to_view(encoding));
    }
  }
  return "";
}

}  // namespace

ReceivedRequest read_head(const http::request_header<>& header) {
  ReceivedRequest head;
  head.request.method = to_view(header.method_string());
  head.error = refuse_host(header);
  if (!head.error) {
    head.error = refuse_coding(header);
  }
  const std::string_view target = to_view(header.target());
  std::optional<std::string> path = path_of(head.request.method, target);
  if (!head.error && !path) {
    head.error = error_response(
        400,
        fmt::format(
            "The target of a request must be a path, such as /healthz, or a URL of HTTP, but is '{}'. Correct the request.",
            shorten(target)));
  }
  if (!head.error) {
    head.request.path = std::move(*path);
    head.request.content_encoding = content_encoding_of(header);
    // message::keep_alive() of Beast reads only the first of several fields.
    const std::string options = list_of(header, http::field::connection);
    http::token_list connection(options);
    head.keeps_alive = !connection.exists("close") &&
        (header.version() >= 11 || connection.exists("keep-alive"));
    head.expects_continue = header.version() >= 11 &&
        beast::iequals(header[http::field::expect], "100-continue");
  }
  return head;
}

}  // namespace tessera::serving
