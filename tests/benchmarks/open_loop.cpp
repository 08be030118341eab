// SPDX-License-Identifier: Apache-2.0
#include "tests/benchmarks/open_loop.h"

#include "tests/benchmarks/benchmark.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <random>

namespace {

// Boost 1.74 refuses answers in several packets if there is no limit.
constexpr uint64_t kMaxAnswer = uint64_t{1} << 30;

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using Error = boost::system::error_code;
using asio::ip::tcp;

constexpr auto kDeadlineChecks = std::chrono::milliseconds(20);

double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds));
}

// A share of 0.99 of the values are at most as large as the result for 0.99. NaN: no values.
double sorted_quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

enum class Outcome { kOk, kRejected, kError, kTimeout };

struct Request {
  const std::string* bytes = nullptr;
  Clock::time_point scheduled = {};
  bool is_measured = false;  // not part of the warm-up
};

// A connection that stays open, and has at most one request at a time.
class Connection {
 public:
  // Called with what became of the request, and with the text of an error.
  using Done = std::function<
      void(Connection&, const Request&, Outcome, const std::string&)>;

  Connection(
      asio::io_context& context,
      const tcp::resolver::results_type& server,
      Done done)
      : socket_(context), server_(server), done_(std::move(done)) {}

  void open() {
    asio::connect(socket_, server_);
    socket_.set_option(tcp::no_delay(true));
  }

  void send(const Request& request) {
    request_ = request;
    is_busy_ = true;
    has_expired_ = false;
    parser_.reset();
    if (socket_.is_open()) {
      write();
    } else {
      connect();
    }
  }

  // Gives up the request if its time is over.
  void expire(Clock::time_point latest_arrival) {
    if (is_busy_ && request_.scheduled < latest_arrival) {
      has_expired_ = true;
      close();
    }
  }

  int64_t reconnects() const {
    return reconnects_;
  }

 private:
  void close() {
    Error ignored;
    socket_.close(ignored);
    answers_ = 0;
    buffer_.clear();
  }

  void connect() {
    ++reconnects_;
    asio::async_connect(
        socket_, server_, [this](const Error& error, const tcp::endpoint&) {
          if (error || has_expired_) {
            return fail(error, "can't connect");
          }
          socket_.set_option(tcp::no_delay(true));
          write();
        });
  }

  void write() {
    // Asio first tries to send at once, without a turn of the event loop.
    asio::async_write(
        socket_,
        asio::buffer(*request_.bytes),
        [this](const Error& error, size_t) {
          if (error || has_expired_) {
            return fail(error, "can't send a request");
          }
          read();
        });
  }

  void read() {
    parser_.emplace();
    parser_->body_limit(kMaxAnswer);
    http::async_read(
        socket_, buffer_, *parser_, [this](const Error& error, size_t) {
          if (error || has_expired_) {
            return fail(error, "no answer");
          }
          finish();
        });
  }

  void finish() {
    ++answers_;
    const auto& answer = parser_->get();
    if (!parser_->keep_alive()) {
      close();
    }
    const unsigned status = answer.result_int();
    if (status / 100 == 2) {
      report(Outcome::kOk);
    } else if (status == 503) {
      report(Outcome::kRejected);
    } else {
      report(
          Outcome::kError,
          fmt::format("status {}: {}", status, answer.body().substr(0, 300)));
    }
  }

  void fail(const Error& error, const char* what) {
    // A server may close an idle connection just when the next request is sent. Clients then
    // try once more.
    const bool was_idle = answers_ > 0 && !(parser_ && parser_->got_some());
    close();
    if (has_expired_) {
      report(Outcome::kTimeout);
    } else if (was_idle) {
      connect();
    } else {
      report(Outcome::kError, fmt::format("{}: {}", what, error.message()));
    }
  }

  void report(Outcome outcome, const std::string& text = "") {
    is_busy_ = false;
    done_(*this, request_, outcome, text);
  }

  tcp::socket socket_;
  const tcp::resolver::results_type& server_;
  Done done_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::string_body>> parser_;
  Request request_;
  bool is_busy_ = false;
  bool has_expired_ = false;
  int64_t answers_ = 0;  // since the connection was opened
  int64_t reconnects_ = 0;
};

// Sends requests at one rate. All of it runs on one thread.
class LoadRun {
 public:
  LoadRun(
      const LoadOptions& options,
      const std::vector<std::string>& requests,
      const tcp::resolver::results_type& server)
      : options_(options),
        requests_(requests),
        timeout_(to_duration(options.timeout_seconds)),
        gaps_(options.rate),
        random_(options.seed) {
    result_.rate = options.rate;
    for (int64_t i = 0; i < options.connections; ++i) {
      connections_.push_back(std::make_unique<Connection>(
          context_,
          server,
          [this](auto& connection, auto& request, auto outcome, auto& text) {
            on_done(connection, request, outcome, text);
          }));
      connections_.back()->open();
      free_.push_back(connections_.back().get());
    }
  }

  LoadResult run() {
    const Stopwatch watch;
    const auto begin = Clock::now();
    next_ = begin + to_duration(gaps_(random_));
    measured_from_ = begin + to_duration(options_.warmup_seconds);
    end_ = measured_from_ + to_duration(options_.seconds);
    last_answer_ = end_;
    wait_for_next();
    check_deadlines();
    context_.run();
    result_.cpu = watch.core_seconds() / watch.seconds();
    result_.seconds = 1e-3 * ms_between(measured_from_, last_answer_);
    for (const auto& connection : connections_) {
      result_.reconnects += connection->reconnects();
    }
    std::sort(result_.latencies_ms.begin(), result_.latencies_ms.end());
    std::sort(result_.late_ms.begin(), result_.late_ms.end());
    return std::move(result_);
  }

 private:
  void wait_for_next() {
    if (next_ < end_) {
      // On Linux, Asio's timers are a timerfd, which is exact to microseconds. A loop that
      // spins would be exact, too, but would take a core from a server on the same machine.
      arrivals_.expires_at(next_);
      arrivals_.async_wait([this](const Error&) { arrive(); });
    }
  }

  // Sends all requests that are due. There are several if the loop is late.
  void arrive() {
    auto now = Clock::now();
    while (next_ <= now && next_ < end_) {
      arrive_at(next_, now);
      next_ += to_duration(gaps_(random_));
      now = Clock::now();
    }
    wait_for_next();
  }

  void arrive_at(Clock::time_point scheduled, Clock::time_point now) {
    const Request request{
        .bytes = &next_body(),
        .scheduled = scheduled,
        .is_measured = scheduled >= measured_from_};
    ++unfinished_;
    if (request.is_measured) {
      ++result_.requests;
      result_.waited += free_.empty() ? 1 : 0;
      result_.late_ms.push_back(ms_between(scheduled, now));
    }
    if (free_.empty()) {
      waiting_.push_back(request);
    } else {
      Connection* connection = free_.front();
      free_.pop_front();
      connection->send(request);
    }
  }

  const std::string& next_body() {
    const size_t count = requests_.size();
    if (options_.shuffle) {
      return requests_[std::uniform_int_distribution<size_t>(
          0, count - 1)(random_)];
    }
    return requests_[turn_++ % count];
  }

  void on_done(
      Connection& connection,
      const Request& request,
      Outcome outcome,
      const std::string& text) {
    count(request, outcome, text);
    if (waiting_.empty()) {
      free_.push_back(&connection);
    } else {
      const Request next = waiting_.front();
      waiting_.pop_front();
      connection.send(next);
    }
  }

  void count(const Request& request, Outcome outcome, const std::string& text) {
    --unfinished_;
    if (!text.empty() && result_.first_error.empty()) {
      result_.first_error = text;
    }
    if (!request.is_measured) {
      return;
    }
    const auto now = Clock::now();
    last_answer_ = std::max(last_answer_, now);
    result_.ok += outcome == Outcome::kOk;
    result_.rejected += outcome == Outcome::kRejected;
    result_.errors += outcome == Outcome::kError;
    result_.timeouts += outcome == Outcome::kTimeout;
    if (outcome == Outcome::kOk || outcome == Outcome::kTimeout) {
      result_.latencies_ms.push_back(ms_between(request.scheduled, now));
    }
  }

  // Gives up the requests whose time is over, until all have finished.
  void check_deadlines() {
    const auto now = Clock::now();
    while (!waiting_.empty() && waiting_.front().scheduled < now - timeout_) {
      count(waiting_.front(), Outcome::kTimeout, "");
      waiting_.pop_front();
    }
    for (const auto& connection : connections_) {
      connection->expire(now - timeout_);
    }
    if (now < end_ || unfinished_ > 0) {
      deadlines_.expires_after(kDeadlineChecks);
      deadlines_.async_wait([this](const Error&) { check_deadlines(); });
    }
  }

  const LoadOptions& options_;
  const std::vector<std::string>& requests_;
  const Clock::duration timeout_;
  std::exponential_distribution<double> gaps_;
  std::mt19937_64 random_;
  asio::io_context context_{1};
  asio::steady_timer arrivals_{context_};
  asio::steady_timer deadlines_{context_};
  std::vector<std::unique_ptr<Connection>> connections_;
  std::deque<Connection*> free_;
  std::deque<Request> waiting_;
  Clock::time_point next_;
  Clock::time_point measured_from_;
  Clock::time_point end_;
  Clock::time_point last_answer_;
  int64_t unfinished_ = 0;
  size_t turn_ = 0;
  LoadResult result_;
};

}  // namespace

double LoadResult::latency_ms(double share) const {
  return sorted_quantile(latencies_ms, share);
}

double LoadResult::late_p99_ms() const {
  return sorted_quantile(late_ms, 0.99);
}

LoadResult run_open_loop(
    const LoadOptions& options,
    const std::vector<std::string>& requests,
    const tcp::resolver::results_type& server) {
  return LoadRun(options, requests, server).run();
}
