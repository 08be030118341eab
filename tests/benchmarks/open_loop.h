// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// How requests are sent.
struct LoadOptions {
  /// The mean number of requests per second.
  double rate = 0.0;
  /// The measured time, and the time before it that is not measured.
  double seconds = 0.0;
  double warmup_seconds = 0.0;
  int64_t connections = 1;
  /// A request is given up when it is not answered so long after its arrival.
  double timeout_seconds = 5.0;
  /// Whether the requests are taken in random order, and not in turn.
  bool shuffle = false;
  uint64_t seed = 1;
};

/// What became of the requests that arrived in the measured time.
struct LoadResult {
  double rate = 0.0;  // as asked
  double seconds = 0.0;  // until the last answer
  int64_t requests = 0;
  int64_t ok = 0;  // answered with status 2xx
  int64_t rejected = 0;  // answered with status 503
  int64_t errors = 0;
  int64_t timeouts = 0;
  int64_t waited = 0;  // found no free connection
  int64_t reconnects = 0;
  double cpu = 0.0;  // share of a core that the generator used
  std::string first_error = {};
  /// Of answers with status 2xx and of timeouts, in ascending order. A rejection is fast, and
  /// would hide the others.
  std::vector<double> latencies_ms = {};
  /// How late the generator itself was, in ascending order.
  std::vector<double> late_ms = {};

  /// A share of 0.99 of the latencies are at most as large as the result for 0.99. NaN:
  /// there are none.
  double latency_ms(double share) const;
  double late_p99_ms() const;
  int64_t failed() const {
    return rejected + errors + timeouts;
  }
};

/// Sends requests in an open loop: they arrive as a Poisson process, which does not wait for
/// answers. A latency counts from the scheduled arrival, so it includes the time that a
/// request waits for a free connection. Clients that wait for an answer before they send the
/// next request would send none while a server stalls, and would measure one slow request
/// where users see hundreds.
/// `requests` has the bytes of HTTP requests. All of it runs on the calling thread.
/// Errors:  boost::system::system_error if the server can't be connected to at first.
LoadResult run_open_loop(
    const LoadOptions& options,
    const std::vector<std::string>& requests,
    const boost::asio::ip::tcp::resolver::results_type& server);
