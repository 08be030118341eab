// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/server.h>

#include "packages/serving/src/server/request_handler.h"

#include <cstdint>
#include <memory>

namespace tessera::serving {

/// Accepts connections, and reads requests and writes responses on one thread.
class HttpServer {
 public:
  /// Errors:  as Server.
  HttpServer(const ServerOptions& options, RequestHandler& handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

  /// Accepts no more connections, and closes those that have no request.
  void stop_accepting();

  /// Receives and answers the requests that have begun, closes all connections, and ends the
  /// thread. The handler must still work.
  void join();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::serving
