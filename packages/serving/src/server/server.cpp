// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/server.h>

#include <tessera/serving/short_time_slices.h>

#include "packages/serving/src/server/http_session.h"
#include "packages/serving/src/server/request_handler.h"
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
#include <mutex>
#include <set>
#include <thread>

namespace tessera::serving {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

void check_count(const char* name, int64_t count, int64_t max) {
  TESSERA_CHECK_VALUE(
      count >= 1 && count <= max,
      "[Server] {} must be from 1 to {}, but is {}. Correct the options.",
      name,
      max,
      count);
}

void check_seconds(const char* name, double seconds) {
  constexpr double kDay = 86400.0;
  TESSERA_CHECK_VALUE(
      seconds > 0.0 && seconds <= kDay,
      "[Server] {} must be > 0 and at most {}, but is {}. Correct the options.",
      name,
      kDay,
      seconds);
}

void check_function(const std::string& name, const ColumnFunction& made) {
  std::set<std::string> names;
  for (const PipelineColumn& column : made.columns) {
    if (column.type != PipelineColumn::Type::kUnknown) {
      names.insert(column.name);
    }
  }
  TESSERA_CHECK_VALUE(
      made.function != nullptr && !names.empty() &&
          names.size() == made.columns.size(),
      "[Server] functions: '{}' needs a function and the columns that it reads, each once and with its type. Correct the options.",
      name);
}

void check_options(const Reader* reader, const ServerOptions& options) {
  constexpr int64_t kMax = 1'000'000;
  TESSERA_CHECK_VALUE(
      reader != nullptr,
      "[Server] expected a reader, but got nullptr. Pass a std::make_shared<Reader>(...).");
  check_count("threads", options.threads, 1024);
  check_count("max_queue", options.max_queue, kMax);
  check_count("max_batch", options.max_batch, kMax);
  check_count("max_batch_bytes", options.max_batch_bytes, int64_t{1} << 30);
  check_count("max_connections", options.max_connections, kMax);
  check_count("max_body_bytes", options.max_body_bytes, int64_t{1} << 30);
  check_count("max_ids", options.max_ids, int64_t{1} << 30);
  check_seconds("request_seconds", options.request_seconds);
  check_seconds("idle_seconds", options.idle_seconds);
  TESSERA_CHECK_VALUE(
      !options.query || options.query_inputs,
      "[Server] query needs query_inputs, which lists its inputs. Set both.");
  for (const auto& [name, function] : options.functions) {
    check_function(name, function);
  }
}

// Connections for which the process can't open a file would wait without an answer.
size_t max_connections(const ServerOptions& options) {
  constexpr rlim_t kOthers = 64;
  rlimit files = {};
  const bool is_known = ::getrlimit(RLIMIT_NOFILE, &files) == 0;
  const rlim_t free = files.rlim_cur > kOthers ? files.rlim_cur - kOthers : 1;
  const auto wanted = static_cast<rlim_t>(options.max_connections);
  return static_cast<size_t>(is_known ? std::min(wanted, free) : wanted);
}

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

// Accepts connections, and reads requests and writes responses on one thread.
struct Server::Impl {
  Impl(std::shared_ptr<Reader> reader, ServerOptions given, ScoreFunction score)
      : options(std::move(given)),
        handler(std::move(reader), options, std::move(score)) {
    const tcp::endpoint endpoint = endpoint_of(options);
    try {
      // The port of a server that has just ended can be used again.
      acceptor = tcp::acceptor(io, endpoint, /*reuse_addr=*/true);
    } catch (const boost::system::system_error& error) {
      TESSERA_CHECK(
          false,
          "[Server] can't listen on address {}, port {}: {}. Choose an address of this machine and another port, or 0 for any.",
          options.address,
          options.port,
          error.code().message());
    }
    close_on_exec(acceptor);
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
      if (error || !serve(std::move(socket))) {
        // The system has no more files or memory. Wait until some are free again.
        accept_timer.expires_after(std::chrono::milliseconds(50));
        co_await accept_timer.async_wait(
            asio::redirect_error(asio::use_awaitable, error));
      }
    }
  }

  bool serve(tcp::socket socket) {
    try {
      if (context.sessions.size() >= max_connections(options)) {
        context.handler.metrics().count_rejection(Rejection::kConnections);
        return true;
      }
      close_on_exec(socket);
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      start_session(std::move(socket), context);
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
    stop_sessions(context);
  }

  ServerOptions options;
  RequestHandler handler;
  // Stands before `io`, which destroys the sessions, because these use the context.
  SessionContext context{.handler = handler, .options = options};
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_timer{io};
  uint16_t port = 0;
  std::thread thread;
  std::mutex mutex;  // held while the server stops
};

Server::Server(
    std::shared_ptr<Reader> reader,
    ServerOptions options,
    ScoreFunction score) {
  check_options(reader.get(), options);
  impl_ = std::make_unique<Impl>(
      std::move(reader), std::move(options), std::move(score));
}

Server::~Server() {
  stop();
}

uint16_t Server::port() const {
  return impl_->port;
}

void Server::stop() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  asio::post(impl_->io, [this] { impl_->stop_accepting(); });
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
  impl_->handler.finish();
}

}  // namespace tessera::serving
