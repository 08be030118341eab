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

  /// Accepts no more connections, and closes those that don't wait for a response.
  void stop_accepting();

  /// Writes the responses that have come, closes all connections, and ends the thread. All
  /// jobs of the handler must have replied.
  void join();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::serving
