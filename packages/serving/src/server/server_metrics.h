// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>

namespace tessera::serving {

/// Why a request or a connection was refused.
enum class Rejection {
  kQueueFull,
  kDeadline,
  kConnections,
  kBodyTooLarge,
  kHeaderTooLarge,
  kSlowClient,
  kMemory
};
inline constexpr size_t kNumRejections =
    static_cast<size_t>(Rejection::kMemory) + 1;

/// What a server counts besides its requests.
enum class Counter { kConnections, kCandidates, kLookups, kItems };
inline constexpr size_t kNumCounters = static_cast<size_t>(Counter::kItems) + 1;

inline constexpr std::array
    kSecondsBounds{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1.0};
inline constexpr std::array
    kBatchBounds{1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0};

inline constexpr std::array<const char*, kNumRejections> kRejectionReasons{
    "queue_full",
    "deadline",
    "connections",
    "body_size",
    "header_size",
    "slow_client",
    "memory"};

inline constexpr const char* kMetricsText =
    R"(# HELP tessera_requests_total Responses by path and status.
# TYPE tessera_requests_total counter
{requests}# HELP tessera_request_seconds Time from the last byte of a request to its response.
# TYPE tessera_request_seconds histogram
{seconds}# HELP tessera_batch_requests Requests that were scored together, or whose items were searched together.
# TYPE tessera_batch_requests histogram
{batches}# HELP tessera_rejected_total Requests and connections that were refused, by reason.
# TYPE tessera_rejected_total counter
{rejected}# HELP tessera_queue_length Requests that wait for a thread.
# TYPE tessera_queue_length gauge
tessera_queue_length {queue_length}
# HELP tessera_connections Connections that are open.
# TYPE tessera_connections gauge
tessera_connections {connections}
# HELP tessera_version The version that serves.
# TYPE tessera_version gauge
tessera_version {version}
# HELP tessera_version_age_seconds Time since the version was published.
# TYPE tessera_version_age_seconds gauge
tessera_version_age_seconds {age_seconds}
# HELP tessera_version_step The step of the training at which the version was published.
# TYPE tessera_version_step gauge
tessera_version_step {step}
# HELP tessera_versions_taken_total Versions that the reader has taken.
# TYPE tessera_versions_taken_total counter
tessera_versions_taken_total {taken}
# HELP tessera_candidates_total Candidates that were scored.
# TYPE tessera_candidates_total counter
tessera_candidates_total {candidates}
# HELP tessera_lookups_total Ids that /lookup has looked up.
# TYPE tessera_lookups_total counter
tessera_lookups_total {lookups}
# HELP tessera_items_total Items that /recommend has returned.
# TYPE tessera_items_total counter
tessera_items_total {items}
)";

/// The counters of a server. All functions may be called from several threads.
class ServerMetrics {
 public:
  /// Counts a response. `path` is "other" for an unknown path.
  void count_response(const std::string& path, int status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++responses_[{path, status}];
  }
  /// Counts the time from the last byte of a request to its response.
  void count_seconds(const std::string& path, double seconds) {
    const std::lock_guard<std::mutex> lock(mutex_);
    seconds_[path].add(seconds, kSecondsBounds);
  }
  void count_rejection(Rejection reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++rejections_.at(static_cast<size_t>(reason));
  }
  /// Counts the requests that are scored together, or whose items are searched together.
  void count_batch(size_t requests) {
    const std::lock_guard<std::mutex> lock(mutex_);
    batches_.add(static_cast<double>(requests), kBatchBounds);
  }
  void add(Counter counter, int64_t change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    counters_.at(static_cast<size_t>(counter)) += change;
  }

  /// All counters in the text format 0.0.4 of Prometheus.
  std::string text(
      size_t queue_length,
      const Version& version,
      double age_seconds,
      int64_t taken) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string requests;
    for (const auto& [key, count] : responses_) {
      fmt::format_to(
          std::back_inserter(requests),
          "tessera_requests_total{{path=\"{}\",code=\"{}\"}} {}\n",
          key.first,
          key.second,
          count);
    }
    std::string seconds;
    for (const auto& [path, histogram] : seconds_) {
      histogram.write(
          seconds,
          "tessera_request_seconds",
          fmt::format("path=\"{}\"", path),
          kSecondsBounds);
    }
    std::string batches;
    batches_.write(batches, "tessera_batch_requests", "", kBatchBounds);
    std::string rejected;
    for (size_t i = 0; i < kRejectionReasons.size(); ++i) {
      fmt::format_to(
          std::back_inserter(rejected),
          "tessera_rejected_total{{reason=\"{}\"}} {}\n",
          kRejectionReasons.at(i),
          rejections_.at(i));
    }
    const auto& [connections, candidates, lookups, items] = counters_;
    return fmt::format(
        kMetricsText,
        fmt::arg("requests", requests),
        fmt::arg("seconds", seconds),
        fmt::arg("batches", batches),
        fmt::arg("rejected", rejected),
        fmt::arg("queue_length", queue_length),
        fmt::arg("connections", connections),
        fmt::arg("version", version.number()),
        fmt::arg("age_seconds", age_seconds),
        fmt::arg("step", version.step()),
        fmt::arg("taken", taken),
        fmt::arg("candidates", candidates),
        fmt::arg("lookups", lookups),
        fmt::arg("items", items));
  }

 private:
  // How many values are between two bounds, and beyond the last one.
  struct Histogram {
    std::array<uint64_t, 12> counts = {};
    uint64_t count = 0;
    double sum = 0.0;

    void add(double value, std::span<const double> bounds) {
      const auto bound = std::ranges::lower_bound(bounds, value);
      ++counts.at(bound - bounds.begin());
      ++count;
      sum += value;
    }

    void write(
        std::string& text,
        const std::string& name,
        const std::string& label,
        std::span<const double> bounds) const {
      const auto out = std::back_inserter(text);
      const std::string bucket =
          name + "_bucket{" + label + (label.empty() ? "" : ",") + "le=\"";
      uint64_t total = 0;
      for (size_t i = 0; i < bounds.size(); ++i) {
        total += counts.at(i);
        fmt::format_to(out, "{}{}\"}} {}\n", bucket, bounds[i], total);
      }
      fmt::format_to(out, "{}+Inf\"}} {}\n", bucket, count);
      const std::string braces = label.empty() ? "" : "{" + label + "}";
      fmt::format_to(out, "{}_sum{} {}\n", name, braces, sum);
      fmt::format_to(out, "{}_count{} {}\n", name, braces, count);
    }
  };

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::pair<std::string, int>, uint64_t> responses_;
  std::map<std::string, Histogram> seconds_;
  std::array<uint64_t, kNumRejections> rejections_ = {};
  Histogram batches_;
  std::array<int64_t, kNumCounters> counters_ = {};
};

}  // namespace tessera::serving
