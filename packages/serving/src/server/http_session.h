// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/server.h>

#include "packages/serving/src/server/request_handler.h"

#include <utility>  // Boost 1.74 uses std::exchange without it

#include <boost/asio/ip/tcp.hpp>

#include <cstddef>
#include <unordered_set>

namespace tessera::serving {

class HttpSession;

/// What the sessions of a server share. Only the thread that runs the sessions uses it.
struct SessionContext {
  RequestHandler& handler;
  const ServerOptions& options;
  bool is_stopping = false;
  std::unordered_set<HttpSession*> sessions = {};
  /// The bytes of all bodies that are being received, waiting or being sent.
  size_t held_bytes = 0;
};

/// Serves a connection until it closes.
void start_session(
    boost::asio::ip::tcp::socket socket,
    SessionContext& context);

/// Closes each connection as soon as its current request is answered, and at once if there
/// is none.
void stop_sessions(SessionContext& context);

}  // namespace tessera::serving
