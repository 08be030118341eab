// SPDX-License-Identifier: Apache-2.0
// Sends HTTP requests at given rates, and measures their latency in an open loop.
#include "tests/benchmarks/benchmark.h"
#include "tests/benchmarks/open_loop.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <regex>
#include <stdexcept>

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr double kMaxFailed = 0.001;  // share of requests, for --find-rate
constexpr double kMaxLateMs = 1.0;  // p99, above which the results are doubtful

struct Options : BenchmarkOptions {
  std::string& url = text(
      "--url",
      "where requests are sent: http://HOST[:PORT]/PATH",
      "http://127.0.0.1:8080/score");
  std::string& body = text(
      "--body",
      "file with a JSON body in each line, to send with POST; without it, GET",
      "",
      CLI::ExistingFile);
  bool& shuffle =
      flag("--shuffle", "send the bodies in random order instead of in turn");
  double& rate = real("--rate", 100.0, "requests per second", kRates);
  std::vector<double>& rates = option<std::vector<double>>(
      "--rates",
      {},
      "several rates, such as 100,200; replaces --rate",
      kRates);
  bool& find_rate = flag(
      "--find-rate",
      "find the highest rate within --p99-ms, beginning with --rate");
  double& p99_ms = real("--p99-ms", 10.0, "the highest p99 for --find-rate");
  double& precision =
      real("--precision", 0.05, "relative, of the rate that --find-rate finds");
  double& seconds = real(
      "--seconds",
      10.0,
      "measured time of each rate",
      CLI::Range(0.1, 86400.0));
  double& warmup = real("--warmup", 2.0, "time before that is not measured");
  int64_t& connections =
      integer("--connections", 64, "open connections", up_to(60'000));
  double& timeout_ms =
      real("--timeout-ms", 5000.0, "a request is given up after this time");
  int64_t& seed =
      integer("--seed", 1, "of the arrivals and of --shuffle", up_to(1 << 30));

  Options() {
    get_option("--rates")->delimiter(',');
    footer(
        "Each line of the output has, for one rate:\n"
        "  rate, rate_reached           requests per second: asked, and answered with 2xx\n"
        "  requests, ok, rejected       sent; answered with 2xx; answered with 503\n"
        "  errors, timeouts             other answers or none; given up\n"
        "  waited                       requests that found no free connection\n"
        "  reconnects                   connections that the server has closed\n"
        "  p50_ms ... max_ms            from the moment at which a request was due\n"
        "  late_p99_ms, generator_cpu   how late the generator itself was; its share of a core");
    get_option("--rates")->excludes("--find-rate");
    get_option("--rate")->excludes("--rates");
  }

 private:
  static inline const CLI::Range kRates{0.01, 1e6};
};

struct Url {
  std::string host;
  std::string port;
  std::string path;
};

Url parse_url(const std::string& text) {
  static const std::regex kUrl(
      R"(http://(?:\[([^\]]+)\]|([^:/]+))(?::(\d+))?(/.*)?)");
  std::smatch match;
  if (!std::regex_match(text, match, kUrl)) {
    throw std::invalid_argument(fmt::format(
        "[http_load] --url must be http://HOST[:PORT]/PATH, but got '{}'.",
        text));
  }
  const auto part = [&](size_t i, const char* other) {
    return match[i].matched ? match[i].str() : other;
  };
  return {
      match[1].matched ? match[1].str() : match[2].str(),
      part(3, "80"),
      part(4, "/")};
}

// The bytes of each request are made only once.
std::vector<std::string> make_requests(
    const Url& url,
    const std::string& body_file) {
  const std::string host = fmt::format("Host: {}:{}\r\n", url.host, url.port);
  if (body_file.empty()) {
    return {fmt::format("GET {} HTTP/1.1\r\n{}\r\n", url.path, host)};
  }
  std::vector<std::string> requests;
  std::ifstream lines(body_file);
  for (std::string body; std::getline(lines, body);) {
    if (!body.empty()) {
      requests.push_back(fmt::format(
          "POST {} HTTP/1.1\r\n{}Content-Type: application/json\r\n"
          "Content-Length: {}\r\n\r\n{}",
          url.path,
          host,
          body.size(),
          body));
    }
  }
  if (requests.empty()) {
    throw std::invalid_argument(fmt::format(
        "[http_load] '{}' must have a body in each line, but it is empty.",
        body_file));
  }
  return requests;
}

// JSON has no NaN.
std::string json_number(double value) {
  return std::isnan(value) ? "null" : fmt::format("{:.3f}", value);
}

void print_json(const LoadResult& result) {
  fmt::print(
      "{{\"rate\": {:g}, \"rate_reached\": {:.1f}, \"requests\": {}, "
      "\"ok\": {}, \"rejected\": {}, \"errors\": {}, \"timeouts\": {}, "
      "\"waited\": {}, \"reconnects\": {}",
      result.rate,
      static_cast<double>(result.ok) / result.seconds,
      result.requests,
      result.ok,
      result.rejected,
      result.errors,
      result.timeouts,
      result.waited,
      result.reconnects);
  const std::pair<const char*, double> shares[] = {
      {"p50_ms", 0.5},
      {"p90_ms", 0.9},
      {"p99_ms", 0.99},
      {"p999_ms", 0.999},
      {"max_ms", 1.0}};
  for (const auto& [name, share] : shares) {
    fmt::print(", \"{}\": {}", name, json_number(result.latency_ms(share)));
  }
  fmt::print(
      ", \"late_p99_ms\": {}, \"generator_cpu\": {:.2f}}}\n",
      json_number(result.late_p99_ms()),
      result.cpu);
  std::fflush(stdout);
}

void print_first_error(const LoadResult& result) {
  if (!result.first_error.empty()) {
    fmt::print(stderr, "[http_load] first error: {}\n", result.first_error);
  }
}

void warn_if_late(const LoadResult& result) {
  if (result.late_p99_ms() > kMaxLateMs) {
    fmt::print(
        stderr,
        "[http_load] warning: at {:g} requests per second, the generator sent "
        "requests late (p99 {:.1f} ms), while it used {:.0f} % of a core. The "
        "latencies include this. Give the generator a core of its own.\n",
        result.rate,
        result.late_p99_ms(),
        100.0 * result.cpu);
  }
}

// Doubles the rate until it is over the limit, and then halves the range in which the
// highest rate is. Returns the last result within the limit.
std::optional<LoadResult> find_rate(
    const Options& options,
    const std::function<LoadResult(double)>& run) {
  std::optional<LoadResult> best;
  double low = 0.0;
  double high = std::numeric_limits<double>::infinity();
  for (double rate = options.rate; rate >= 0.1 && rate <= 1e6;) {
    LoadResult result = run(rate);
    const bool is_within = !(result.latency_ms(0.99) > options.p99_ms) &&
        static_cast<double>(result.failed()) <=
            kMaxFailed * static_cast<double>(result.requests);
    fmt::print(
        stderr,
        "{:10.1f}/s: p99 {} ms, {} of {} failed, generator late by {} ms: {}\n",
        rate,
        json_number(result.latency_ms(0.99)),
        result.failed(),
        result.requests,
        json_number(result.late_p99_ms()),
        is_within ? "within the limit" : "over the limit");
    print_first_error(result);
    if (is_within) {
      low = rate;
      best = std::move(result);
    } else {
      high = rate;
    }
    if (std::isinf(high)) {
      rate = 2.0 * low;
    } else if (high <= low * (1.0 + options.precision)) {
      break;
    } else {
      rate = low > 0.0 ? 0.5 * (low + high) : 0.5 * high;
    }
  }
  return best;
}

// Gives the addresses of the server, which must accept a connection.
tcp::resolver::results_type find_server(
    asio::io_context& context,
    const Url& url) {
  try {
    const auto server = tcp::resolver(context).resolve(url.host, url.port);
    tcp::socket socket(context);
    asio::connect(socket, server);
    return server;
  } catch (const boost::system::system_error& error) {
    throw std::runtime_error(fmt::format(
        "[http_load] can't connect to {}:{}: {}. Start the server, or set "
        "--url.",
        url.host,
        url.port,
        error.code().message()));
  }
}

void measure(const Options& options) {
  const Url url = parse_url(options.url);
  const auto requests = make_requests(url, options.body);
  asio::io_context context;
  const auto server = find_server(context, url);
  const auto run = [&](double rate) {
    try {
      return run_open_loop(
          {.rate = rate,
           .seconds = options.seconds,
           .warmup_seconds = options.warmup,
           .connections = options.connections,
           .timeout_seconds = 1e-3 * options.timeout_ms,
           .shuffle = options.shuffle,
           .seed = static_cast<uint64_t>(options.seed)},
          requests,
          server);
    } catch (const boost::system::system_error& error) {
      throw std::runtime_error(fmt::format(
          "[http_load] can't open {} connections: {}. Lower --connections, or "
          "raise ulimit -n.",
          options.connections,
          error.code().message()));
    }
  };
  if (options.find_rate) {
    const auto best = find_rate(options, run);
    if (!best) {
      throw std::runtime_error(fmt::format(
          "[http_load] no rate had a p99 of at most {} ms.", options.p99_ms));
    }
    print_json(*best);
    warn_if_late(*best);
    return;
  }
  const auto rates =
      options.rates.empty() ? std::vector<double>{options.rate} : options.rates;
  for (const double rate : rates) {
    const LoadResult result = run(rate);
    print_json(result);
    print_first_error(result);
    warn_if_late(result);
  }
}

}  // namespace

// benchmark.cpp needs LibTorch, so only its header is used.
int main(int argc, char** argv) {
  Options options;
  options.description(
      "Sends HTTP requests at given rates, and prints their latency as a line "
      "of JSON per rate.");
  CLI11_PARSE(options, argc, argv);
  try {
    measure(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
