// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/http_session.h"

#include <tessera/common/shorten.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/address_v6.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::serving {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr uint32_t kMaxHeaderBytes = 16 * 1024;

// An idle connection keeps no larger buffer.
constexpr size_t kKeptBuffer = 4096;

// The bytes that a connection may have received and not yet parsed. They also limit the
// lines of chunks and trailers, for which the parser has no limit.
constexpr size_t kMaxBuffer = 65536;

// All connections hold no more bytes of bodies than this.
constexpr size_t kMaxHeldBytes = size_t{1} << 30;

// Responses up to this size do not count towards kMaxHeldBytes. So health checks work
// even while clients that do not read their responses hold all of these bytes.
constexpr size_t kSmallResponse = 16 * 1024;

// A connection that closes still reads for this time, and up to this number of bytes. If
// it did not, the system would tell the client that bytes were lost, and the client might
// lose the response.
constexpr double kClosingSeconds = 1.0;
constexpr size_t kMaxClosingBytes = size_t{64} << 20;

std::string_view text_of(const beast::flat_buffer& buffer) {
  return {static_cast<const char*>(buffer.cdata().data()), buffer.size()};
}

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kHexDigits = "0123456789ABCDEFabcdef";
// The characters of a host that stand for themselves.
constexpr std::string_view kHostCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+"
    ",;=";

std::string_view to_view(beast::string_view text) {
  return {text.data(), text.size()};
}

// The values of all fields with this name, as one list.
std::string list_of(const http::request_header<>& header, http::field name) {
  const auto [begin, end] = header.equal_range(name);
  std::string list;
  for (auto field = begin; field != end; ++field) {
    list += field == begin ? "" : ", ";
    list += to_view(field->value());
  }
  return list;
}

bool has_only(std::string_view text, std::string_view characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

bool is_name(std::string_view text) {
  for (size_t escape = text.find('%'); escape != std::string_view::npos;
       escape = text.find('%')) {
    const std::string_view digits = text.substr(escape + 1, 2);
    if (digits.size() != 2 || !has_only(digits, kHexDigits) ||
        !has_only(text.substr(0, escape), kHostCharacters)) {
      return false;
    }
    text.remove_prefix(escape + 3);
  }
  return has_only(text, kHostCharacters);
}

bool is_address_v6(std::string_view text) {
  boost::system::error_code error;
  boost::asio::ip::make_address_v6(std::string(text), error);
  return !error && has_only(text, "0123456789ABCDEFabcdef:.");
}

// Whether the text is that of RFC 9110, section 7.2: uri-host [ ":" port ].
bool is_host(std::string_view text) {
  const bool has_brackets =
      text.starts_with('[') && text.find(']') < text.size();
  const size_t end =
      has_brackets ? text.find(']') + 1 : std::min(text.find(':'), text.size());
  const std::string_view host = text.substr(0, end);
  const std::string_view port = text.substr(end);
  const bool has_host = has_brackets
      ? is_address_v6(host.substr(1, host.size() - 2))
      : is_name(host);
  return has_host &&
      (port.empty() ||
       (port.front() == ':' && has_only(port.substr(1), kDigits)));
}

// The path of a target in one of the four forms of RFC 9112, section 3.2, or
// nothing.
std::optional<std::string> path_of(
    std::string_view method,
    std::string_view target) {
  const bool has_path = target.starts_with('/') ||
      (method == "OPTIONS" && target == "*") ||
      (method == "CONNECT" && is_host(target));
  if (!has_path) {  // then it begins with "http://host"
    const std::string_view scheme = target.substr(0, target.find("://"));
    if (scheme.size() == target.size() ||
        !(beast::iequals({scheme.data(), scheme.size()}, "http") ||
          beast::iequals({scheme.data(), scheme.size()}, "https"))) {
      return std::nullopt;
    }
    target.remove_prefix(scheme.size() + 3);
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    const std::string_view host = target.substr(0, end);
    if (host.empty() || host.front() == ':' || !is_host(host)) {
      return std::nullopt;
    }
    target.remove_prefix(end);
  }
  const std::string_view path = target.substr(0, target.find('?'));
  return std::string(path.empty() ? "/" : path);
}

std::optional<HttpResponse> refuse_host(const http::request_header<>& header) {
  const size_t hosts = header.count(http::field::host);
  const std::string_view host = to_view(header[http::field::host]);
  const bool has_host =
      hosts == 1 ? is_host(host) : hosts == 0 && header.version() < 11;
  if (has_host) {
    return std::nullopt;
  }
  return error_response(
      400,
      hosts == 0
          ? "A request must have a Host header, but has none. Add one, such as 'Host: localhost'."
          : fmt::format(
                "A request must have one Host header with a name or an address, but has {} with the value '{}'. Correct it.",
                hosts,
                shorten(host)));
}

// Refuses every transfer coding except a single "chunked". With another one, bytes of the
// body would be left, and would be read as requests.
std::optional<HttpResponse> refuse_coding(
    const http::request_header<>& header) {
  const std::string codings = list_of(header, http::field::transfer_encoding);
  const bool is_right = header.count(http::field::transfer_encoding) == 0 ||
      (header.version() >= 11 && beast::iequals(codings, "chunked"));
  if (is_right) {
    return std::nullopt;
  }
  const http::token_list list(codings);
  const auto chunked =
      std::ranges::find_if(list, [](const beast::string_view& coding) {
        return beast::iequals(coding, "chunked");
      });
  // An unknown coding below "chunked" does not change where the body ends.
  const bool has_end = header.version() >= 11 && chunked != list.begin() &&
      chunked != list.end() && std::next(chunked) == list.end();
  return error_response(
      has_end ? 501 : 400,
      header.version() < 11
          ? "HTTP/1.0 has no Transfer-Encoding. Send a Content-Length."
          : fmt::format(
                "The Transfer-Encoding must be chunked, but is '{}'. Send a Content-Length.",
                shorten(codings)));
}

// The first encoding that changes the body.
std::string content_encoding_of(const http::request_header<>& header) {
  const auto [begin, end] = header.equal_range(http::field::content_encoding);
  for (auto field = begin; field != end; ++field) {
    const beast::string_view encoding = field->value();
    if (!encoding.empty() && !beast::iequals(encoding, "identity")) {
      return std::string(to_view(encoding));
    }
  }
  return "";
}

// What a session has received.
struct ReceivedRequest {
  HttpRequest request = {};  // a wrong one may have only its method
  bool keeps_alive = false;
  // Whether the client waits for "100 Continue" before it sends the body.
  bool expects_continue = false;
  // Set if the request is wrong. The connection must close then, because what follows may
  // not be a request.
  std::optional<HttpResponse> error = {};
  // Whether the client is gone.
  bool is_gone = false;
};

// Reads a header, and applies those rules of RFC 9112 that Beast's parser leaves to its
// caller. The body is still missing.
ReceivedRequest read_head(const http::request_header<>& header) {
  ReceivedRequest head;
  head.request.method = to_view(header.method_string());
  head.error = refuse_host(header);
  if (!head.error) {
    head.error = refuse_coding(header);
  }
  const std::string_view target = to_view(header.target());
  std::optional<std::string> path = path_of(head.request.method, target);
  if (!head.error && !path) {
    head.error = error_response(
        400,
        fmt::format(
            "The target of a request must be a path, such as /healthz, or a URL of HTTP, but is '{}'. Correct the request.",
            shorten(target)));
  }
  if (!head.error) {
    head.request.path = std::move(*path);
    head.request.content_encoding = content_encoding_of(header);
    // message::keep_alive() of Beast reads only the first of several fields.
    const std::string options = list_of(header, http::field::connection);
    http::token_list connection(options);
    head.keeps_alive = !connection.exists("close") &&
        (header.version() >= 11 || connection.exists("keep-alive"));
    head.expects_continue = header.version() >= 11 &&
        beast::iequals(header[http::field::expect], "100-continue");
  }
  return head;
}

// The date of now in English, such as "Sun, 06 Nov 1994 08:49:37 GMT".
std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  return fmt::format("{:%a, %d %b %Y %T} GMT", *::gmtime_r(&now, &utc));
}

// The status line and the header of a response.
std::string head_of(const HttpResponse& response, bool keeps_alive) {
  const auto reason = http::obsolete_reason(
      http::int_to_status(static_cast<unsigned>(response.status)));
  return fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Date: {}\r\n"
      "Content-Type: {}\r\n"
      "Content-Length: {}\r\n"
      "Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Connection: {}\r\n"
      "{}\r\n",
      response.status,
      std::string_view(reason.data(), reason.size()),
      date_text(),
      response.content_type,
      response.body.size(),
      keeps_alive ? "keep-alive" : "close",
      response.headers);
}

HttpResponse memory_response(ServerMetrics& metrics) {
  metrics.count_rejection(Rejection::kMemory);
  return busy_response(
      "The server has too many large requests and answers. Try again later.");
}

}  // namespace

// One connection: it reads a request, writes the response, and reads the next one.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(asio::ip::tcp::socket socket, SessionContext& context)
      : socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        buffer_(kMaxBuffer),
        context_(context) {
    context_.sessions.insert(this);
    context_.handler.metrics().add(Counter::kConnections, 1);
  }
  ~HttpSession() {
    hold(0);
    context_.sessions.erase(this);
    context_.handler.metrics().add(Counter::kConnections, -1);
  }

  // Serves the connection until it closes.
  asio::awaitable<void> run() {
    while (true) {
      const bool has_request = co_await wait_for_request();
      if (!has_request) {
        co_return;
      }
      ReceivedRequest received = co_await read();
      if (received.is_gone) {
        co_return;
      }
      const auto received_at = Clock::now();
      const bool is_head = received.request.method == "HEAD";
      const std::string label = label_of(received.request.path);
      ServerMetrics& metrics = context_.handler.metrics();
      HttpResponse response;
      if (received.error) {
        response = std::move(*received.error);
      } else {
        response = co_await answer(std::move(received.request));
        const std::chrono::duration<double> seconds =
            Clock::now() - received_at;
        metrics.count_seconds(label, seconds.count());
      }
      hold(0);
      if (response.body.size() > kSmallResponse &&
          !hold(response.body.size())) {
        response = memory_response(metrics);
      }
      metrics.count_response(label, response.status);
      const bool keeps_alive =
          received.keeps_alive && !response.closes && !context_.is_stopping;
      std::string head = head_of(response, keeps_alive);
      std::string body = is_head ? std::string() : std::move(response.body);
      const bool is_written = co_await write(std::move(head), std::move(body));
      hold(0);
      if (!is_written) {
        co_return;
      }
      if (!keeps_alive) {
        co_await close();
        co_return;
      }
    }
  }

  // Closes the connection as soon as the current request is answered, and at
  // once if there is none.
  void stop() {
    if (phase_ == Phase::kIdle || phase_ == Phase::kClosing) {
      begin(phase_, 0.0);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  // What the session waits for.
  enum class Phase { kIdle, kReading, kComputing, kWriting, kClosing };

  // Counts the bytes that the connection holds for the body of a request or of a response.
  // Returns false, and counts none, if all connections would hold too many.
  bool hold(size_t bytes) {
    size_t& total = context_.held_bytes;
    total -= std::exchange(held_, 0);
    if (bytes > kMaxHeldBytes - std::min(kMaxHeldBytes, total)) {
      return false;
    }
    held_ = bytes;
    total += bytes;
    return true;
  }

  // Waits for the first byte of a request. Meanwhile, the connection has no large buffer.
  asio::awaitable<bool> wait_for_request() {
    begin(Phase::kIdle, context_.options.idle_seconds);
    error_code error;
    while (!error && !context_.is_stopping && !has_request()) {
      if (buffer_.size() == 0 && buffer_.capacity() > kKeptBuffer) {
        buffer_.shrink_to_fit();
      }
      co_await socket_.async_wait(
          asio::ip::tcp::socket::wait_read,
          asio::redirect_error(asio::use_awaitable, error));
      if (!error) {
        const size_t size = co_await socket_.async_read_some(
            buffer_.prepare(kKeptBuffer),
            asio::redirect_error(asio::use_awaitable, error));
        buffer_.commit(size);
      }
    }
    end_phase();
    co_return !error && has_request();
  }
  // Some clients send an empty line before a request.
  bool has_request() {
    while (text_of(buffer_).starts_with("\r\n")) {
      buffer_.consume(2);
    }
    return buffer_.size() != 0 && text_of(buffer_) != "\r";
  }
  asio::awaitable<ReceivedRequest> read() {
    begin(Phase::kReading, context_.options.request_seconds);
    const auto max_bytes =
        static_cast<uint64_t>(context_.options.max_body_bytes);
    http::request_parser<http::string_body> parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(max_bytes);
    error_code error;
    co_await http::async_read_header(
        socket_,
        buffer_,
        parser,
        asio::redirect_error(asio::use_awaitable, error));
    // The header is read before the body, because the parser later adds the trailer to it.
    ReceivedRequest received;
    if (!error) {
      received = read_head(parser.get());
      const auto length = parser.content_length();
      if (!received.error && !parser.is_done() &&
          !hold(static_cast<size_t>(length ? *length : max_bytes))) {
        received.error = memory_response(context_.handler.metrics());
      }
      if (received.error) {
        end_phase();
        co_return received;
      }
      // curl waits a second for this before it sends a large body.
      if (received.expects_continue && !parser.is_done()) {
        const std::string text = "HTTP/1.1 100 Continue\r\n\r\n";
        co_await asio::async_write(
            socket_,
            asio::buffer(text),
            asio::redirect_error(asio::use_awaitable, error));
      }
    }
    if (!error && !parser.is_done()) {
      co_await http::async_read(
          socket_,
          buffer_,
          parser,
          asio::redirect_error(asio::use_awaitable, error));
    }
    end_phase();
    if (error) {
      hold(0);
      const bool has_request_line = !parser.get().target().empty() ||
          text_of(buffer_).find('\n') != std::string_view::npos;
      received = refusal_of(error, has_request_line);
      received.request.method = std::string(parser.get().method_string());
      co_return received;
    }
    received.request.body = std::move(parser.get().body());
    hold(received.request.body.size());
    co_return received;
  }
  ReceivedRequest refusal_of(const error_code& error, bool has_request_line) {
    const auto reject =
        [&](Rejection reason, int status, const std::string& problem) {
          context_.handler.metrics().count_rejection(reason);
          return ReceivedRequest{.error = error_response(status, problem)};
        };
    if (error == asio::error::operation_aborted && is_late_) {
      return reject(
          Rejection::kSlowClient,
          408,
          fmt::format(
              "The request must be complete after {} seconds, but was not.",
              context_.options.request_seconds));
    }
    if (error == http::error::body_limit) {
      return reject(
          Rejection::kBodyTooLarge,
          413,
          fmt::format(
              "The body of a request may have at most {} bytes. Send a smaller one.",
              context_.options.max_body_bytes));
    }
    const bool is_long_header = error == http::error::header_limit;
    if (is_long_header || error == http::error::buffer_overflow) {
      return reject(
          Rejection::kHeaderTooLarge,
          is_long_header && !has_request_line ? 414 : 431,
          fmt::format(
              "{} may have at most {} bytes. Send a smaller one.",
              is_long_header ? "The header of a request"
                             : "The first line of a chunk, and the trailer,",
              is_long_header ? kMaxHeaderBytes : kMaxBuffer));
    }
    const bool is_gone = error == http::error::end_of_stream ||
        error == http::error::partial_message ||
        error.category() !=
            http::make_error_code(http::error::end_of_stream).category();
    if (is_gone) {
      return {.is_gone = true};
    }
    return {
        .error = error_response(
            400,
            fmt::format(
                "Expected a request of HTTP/1.1, but got: {}.",
                error.message()))};
  }
  // Gives the response of the handler, and waits for it if a thread computes it.
  asio::awaitable<HttpResponse> answer(HttpRequest request) {
    phase_ = Phase::kComputing;
    response_.reset();
    RequestHandler::Answer answer;
    try {
      answer = context_.handler.handle(
          std::move(request),
          Clock::now(),
          [session = weak_from_this(),
           executor = socket_.get_executor()](HttpResponse response) {
            asio::post(
                executor, [session, response = std::move(response)]() mutable {
                  if (const auto alive = session.lock()) {
                    alive->response_ = std::move(response);
                    alive->timer_.cancel();
                  }
                });
          });
    } catch (const std::exception& error) {
      log_error(error.what());
      answer.response = error_response(500, "internal error");
    }
    if (answer.response) {
      co_return std::move(*answer.response);
    }
    // The response ends the wait. Once a thread computes, there is no deadline.
    timer_.expires_at(answer.job->deadline);
    while (!response_) {
      error_code ignored;
      co_await timer_.async_wait(
          asio::redirect_error(asio::use_awaitable, ignored));
      if (!response_ && Clock::now() >= answer.job->deadline) {
        response_ = context_.handler.give_up(*answer.job);
        timer_.expires_after(std::chrono::hours(24));
      }
    }
    co_return std::move(*response_);
  }
  asio::awaitable<bool> write(std::string head, std::string body) {
    begin(Phase::kWriting, context_.options.request_seconds);
    error_code error;
    const std::array<asio::const_buffer, 2> buffers{
        asio::buffer(head), asio::buffer(body)};
    co_await asio::async_write(
        socket_, buffers, asio::redirect_error(asio::use_awaitable, error));
    end_phase();
    co_return !error;
  }
  // Tells the client that no more comes, and reads what it still sends.
  asio::awaitable<void> close() {
    error_code error;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
    begin(Phase::kClosing, context_.is_stopping ? 0.0 : kClosingSeconds);
    buffer_.clear();
    size_t bytes = 0;
    while (!error && !is_late_ && bytes < kMaxClosingBytes) {
      constexpr size_t kPiece = 65536;
      bytes += co_await socket_.async_read_some(
          buffer_.prepare(kPiece),
          asio::redirect_error(asio::use_awaitable, error));
    }
    end_phase();
  }

  void begin(Phase phase, double seconds) {
    phase_ = phase;
    ++phases_;
    is_late_ = false;
    watch(std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(seconds)));
  }
  void end_phase() {
    ++phases_;
    phase_ = Phase::kComputing;
    timer_.cancel();
  }
  // After `time`, cancels what the socket does, unless the phase has ended. An operation of
  // several steps may begin its next step after it was cancelled, so it is cancelled again.
  void watch(Clock::duration time) {
    timer_.expires_after(time);
    timer_.async_wait([session = weak_from_this(),
                       number = phases_](const error_code& error) {
      const auto alive = session.lock();
      if (error || alive == nullptr || alive->phases_ != number) {
        return;
      }
      alive->is_late_ = true;
      error_code ignored;
      alive->socket_.cancel(ignored);
      alive->watch(std::chrono::milliseconds(20));
    });
  }
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  beast::flat_buffer buffer_;
  SessionContext& context_;
  size_t held_ = 0;  // bytes of a body
  Phase phase_ = Phase::kComputing;
  uint64_t phases_ = 0;  // so that the timer of an earlier phase does nothing
  bool is_late_ = false;  // the time of this phase is over
  std::optional<HttpResponse> response_;
};

void start_session(asio::ip::tcp::socket socket, SessionContext& context) {
  const auto executor = socket.get_executor();
  asio::co_spawn(
      executor,
      [session = std::make_shared<HttpSession>(std::move(socket), context)] {
        return session->run();
      },
      asio::detached);
}

void stop_sessions(SessionContext& context) {
  for (HttpSession* session : context.sessions) {
    session->stop();
  }
}

}  // namespace tessera::serving
