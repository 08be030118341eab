// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/http_server.h"

#include <tessera/serving/short_time_slices.h>

#include "packages/serving/src/server/error_log.h"
#include "packages/serving/src/server/http_session.h"
#include "src/common/check.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <exception>
#include <thread>

namespace tessera::serving {

namespace {

// Beyond the files that the process may open, connections would wait without an answer.
size_t max_connections(const ServerOptions& options) {
  constexpr rlim_t kOthers = 64;
  rlimit files = {};
  const bool is_known = ::getrlimit(RLIMIT_NOFILE, &files) == 0;
  const rlim_t free = files.rlim_cur > kOthers ? files.rlim_cur - kOthers : 1;
  const auto wanted = static_cast<rlim_t>(options.max_connections);
  return static_cast<size_t>(is_known ? std::min(wanted, free) : wanted);
}

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

tcp::endpoint endpoint_of(const ServerOptions& options) {
  error_code error;
  const asio::ip::address address = asio::ip::make_address(
      options.address == "localhost" ? "127.0.0.1" : options.address, error);
  TESSERA_CHECK_VALUE(
      !error,
      "[Server] address must be an IP address or \"localhost\", but is '{}'. Correct the options.",
      options.address);
  return {address, options.port};
}

// Programs that this process starts should not keep the socket open.
template <class Socket>
void close_on_exec(Socket& socket) {
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
}

}  // namespace

struct HttpServer::Impl {
  Impl(const ServerOptions& given, RequestHandler& handler)
      : options(given),
        context{.handler = handler, .options = options},
        acceptor(io),
        accept_timer(io) {
    const tcp::endpoint endpoint = endpoint_of(options);
    error_code error;
    acceptor.open(endpoint.protocol(), error);
    if (!error) {
      close_on_exec(acceptor);
      // The port of a server that has just ended can be used again.
      acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    }
    if (!error) {
      acceptor.bind(endpoint, error);
    }
    if (!error) {
      acceptor.listen(asio::socket_base::max_listen_connections, error);
    }
    TESSERA_CHECK(
        !error,
        "[Server] can't listen on address {}, port {}: {}. Choose an address of this machine and another port, or 0 for any.",
        options.address,
        options.port,
        error.message());
    port = acceptor.local_endpoint().port();
    asio::co_spawn(
        io, [this] { return accept(); }, asio::detached);
    thread = std::thread([this] { run(); });
  }

  void run() {
    use_short_time_slices();
    while (true) {
      try {
        io.run();
        return;
      } catch (const std::exception& error) {
        log_error(error.what());
      }
    }
  }

  asio::awaitable<void> accept() {
    while (!context.is_stopping) {
      error_code error;
      tcp::socket socket = co_await acceptor.async_accept(
          asio::redirect_error(asio::use_awaitable, error));
      if (context.is_stopping) {
        co_return;
      }
      if (error || !start_session(std::move(socket))) {
        // The system has no more files or memory. Wait until some are free again.
        accept_timer.expires_after(std::chrono::milliseconds(50));
        co_await accept_timer.async_wait(
            asio::redirect_error(asio::use_awaitable, error));
      }
    }
  }

  bool start_session(tcp::socket socket) {
    try {
      if (context.sessions.size() >= max_connections(options)) {
        context.handler.metrics().count_rejection(Rejection::kConnections);
        return true;
      }
      close_on_exec(socket);
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      asio::co_spawn(
          io,
          [session = std::make_shared<HttpSession>(
               std::move(socket), context)] { return session->run(); },
          asio::detached);
      return true;
    } catch (const std::exception& error) {
      log_error(error.what());
      return false;
    }
  }

  void stop_accepting() {
    context.is_stopping = true;
    error_code ignored;
    acceptor.close(ignored);
    accept_timer.cancel();
    for (HttpSession* session : context.sessions) {
      session->stop();
    }
  }

  ServerOptions options;
  SessionContext context;  // the sessions, which `io` destroys, use it
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer accept_timer;
  uint16_t port = 0;
  std::thread thread;
};

HttpServer::HttpServer(const ServerOptions& options, RequestHandler& handler)
    : impl_(std::make_unique<Impl>(options, handler)) {}

HttpServer::~HttpServer() {
  stop_accepting();
  join();
}

uint16_t HttpServer::port() const {
  return impl_->port;
}

void HttpServer::stop_accepting() {
  asio::post(impl_->io, [this] { impl_->stop_accepting(); });
}

void HttpServer::join() {
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
}

}  // namespace tessera::serving
