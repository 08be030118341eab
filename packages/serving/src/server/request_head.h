// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/server/http_message.h"

#include <utility>  // Boost 1.74 uses std::exchange without it

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>

#include <optional>

namespace tessera::serving {

/// What a session has received.
struct ReceivedRequest {
  HttpRequest request = {};  // a wrong one may have only its method
  bool keeps_alive = false;
  /// Whether the client waits for "100 Continue" before it sends the body.
  bool expects_continue = false;
  /// Set if the request is wrong. The connection must close then, because what follows may
  /// not be a request.
  std::optional<HttpResponse> error = {};
  /// Whether the client is gone.
  bool is_gone = false;
};

/// Reads a header, and applies those rules of RFC 9112 that Beast's parser leaves to its
/// caller. The body is still missing.
ReceivedRequest read_head(const boost::beast::http::request_header<>& header);

}  // namespace tessera::serving
