// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/server.h>

#include "packages/serving/src/server/check_options.h"
#include "packages/serving/src/server/http_server.h"
#include "packages/serving/src/server/request_handler.h"

#include <mutex>
#include <utility>

namespace tessera::serving {

struct Server::Impl {
  Impl(
      std::shared_ptr<Reader> reader,
      const ServerOptions& options,
      ScoreFunction score)
      : handler(std::move(reader), options, std::move(score)),
        http(options, handler) {}

  std::mutex mutex;  // held while the server stops
  RequestHandler handler;
  HttpServer http;
};

Server::Server(
    std::shared_ptr<Reader> reader,
    ServerOptions options,
    ScoreFunction score) {
  check_options(reader.get(), options);
  impl_ = std::make_unique<Impl>(std::move(reader), options, std::move(score));
}

Server::~Server() {
  stop();
}

uint16_t Server::port() const {
  return impl_->http.port();
}

void Server::stop() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->http.stop_accepting();
  impl_->http.join();
  impl_->handler.finish();
}

}  // namespace tessera::serving
