// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/server.h>

#include "src/common/check.h"

namespace tessera::serving {

struct Server::Impl {};

Server::Server(
    std::shared_ptr<Reader> /*reader*/,
    ServerOptions /*options*/,
    ScoreFunction /*score*/) {
  TESSERA_CHECK(
      false,
      "[Server] expected a Tessera with Boost, but this one was built without it. Run ./run setup, or install libboost-dev. Then configure and build Tessera again.");
}

Server::~Server() = default;

uint16_t Server::port() const {
  return 0;
}

void Server::stop() {}

}  // namespace tessera::serving
