// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/server.h>

#include "packages/serving/src/server/request_handler.h"

#include <utility>  // Boost 1.74 uses std::exchange without it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

namespace tessera::serving {

class HttpSession;

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

/// The bytes that a connection holds for the body of a request or of a response. They count
/// in the total of all connections.
class HeldBytes {
 public:
  explicit HeldBytes(size_t& total) : total_(total) {}
  ~HeldBytes() {
    set(0);
  }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

  /// Returns false, and counts none, if all connections would hold too many.
  bool set(size_t bytes);

 private:
  size_t& total_;
  size_t bytes_ = 0;
};

/// What the sessions of a server share. Only the thread that runs the sessions uses it.
struct SessionContext {
  RequestHandler& handler;
  const ServerOptions& options;
  bool is_stopping = false;
  std::unordered_set<HttpSession*> sessions = {};
  /// The bytes of all bodies that are being received, waiting or being sent.
  size_t held_bytes = 0;
};

/// One connection: it reads a request, writes the response, and reads the next one.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(boost::asio::ip::tcp::socket socket, SessionContext& context);
  ~HttpSession();

  /// Serves the connection until it closes.
  boost::asio::awaitable<void> run();

  /// Closes the connection as soon as the current request is answered, and at
  /// once if there is none.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  // What the session waits for.
  enum class Phase { kIdle, kReading, kComputing, kWriting, kClosing };

  boost::asio::awaitable<bool> wait_for_request();
  bool has_request();
  boost::asio::awaitable<ReceivedRequest> read();
  ReceivedRequest refusal_of(
      const boost::system::error_code& error,
      bool has_request_line);
  void hold(HttpResponse& response);
  boost::asio::awaitable<HttpResponse> answer(HttpRequest request);
  boost::asio::awaitable<bool> write(std::string head, std::string body);
  boost::asio::awaitable<void> close();

  void begin(Phase phase, double seconds);
  void end_phase();
  void watch(Clock::duration time);
  void take_response(HttpResponse response);

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  SessionContext& context_;
  HeldBytes held_;
  Phase phase_ = Phase::kComputing;
  uint64_t phases_ = 0;  // so that the timer of an earlier phase does nothing
  bool is_late_ = false;  // the time of this phase is over
  std::optional<HttpResponse> response_;
};

}  // namespace tessera::serving
