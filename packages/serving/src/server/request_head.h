// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/server/http_message.h"

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>

#include <optional>

namespace tessera::serving {

/// What the header of a request says.
struct RequestHead {
  /// Without its body.
  HttpRequest request = {};
  bool keeps_alive = false;
  /// Whether the client waits for "100 Continue" before it sends the body.
  bool expects_continue = false;
  /// Set if the request breaks a rule of HTTP. The connection must close then,
  /// because what follows may not be a request.
  std::optional<HttpResponse> refusal = {};
};

/// Reads a header, and applies those rules of RFC 9112 that Beast's parser
/// leaves to its caller.
RequestHead read_head(const boost::beast::http::request_header<>& header);

}  // namespace tessera::serving
