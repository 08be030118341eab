// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/server_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tessera::serving {

namespace {

constexpr std::array
    kSecondsBounds{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1.0};
constexpr std::array
    kBatchBounds{1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0};

constexpr std::array<const char*, kNumRejections> kReasons{
    "queue_full",
    "deadline",
    "connections",
    "body_size",
    "header_size",
    "slow_client",
    "memory"};

constexpr const char* kText =
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

}  // namespace

void ServerMetrics::Histogram::add(
    double value,
    std::span<const double> bounds) {
  const auto bound = std::ranges::lower_bound(bounds, value);
  ++counts.at(bound - bounds.begin());
  ++count;
  sum += value;
}

void ServerMetrics::Histogram::write(
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

void ServerMetrics::count_response(const std::string& path, int status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++responses_[{path, status}];
}

void ServerMetrics::count_seconds(const std::string& path, double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  seconds_[path].add(seconds, kSecondsBounds);
}

void ServerMetrics::count_rejection(Rejection reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++rejections_.at(static_cast<size_t>(reason));
}

void ServerMetrics::count_batch(size_t requests) {
  const std::lock_guard<std::mutex> lock(mutex_);
  batches_.add(static_cast<double>(requests), kBatchBounds);
}

void ServerMetrics::add(Counter counter, int64_t change) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.at(static_cast<size_t>(counter)) += change;
}

std::string ServerMetrics::text(const MetricsNow& now) const {
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
  for (size_t i = 0; i < kReasons.size(); ++i) {
    fmt::format_to(
        std::back_inserter(rejected),
        "tessera_rejected_total{{reason=\"{}\"}} {}\n",
        kReasons.at(i),
        rejections_.at(i));
  }
  const auto& [connections, candidates, lookups, items] = counters_;
  return fmt::format(
      kText,
      fmt::arg("requests", requests),
      fmt::arg("seconds", seconds),
      fmt::arg("batches", batches),
      fmt::arg("rejected", rejected),
      fmt::arg("queue_length", now.queue_length),
      fmt::arg("connections", connections),
      fmt::arg("version", now.version),
      fmt::arg("age_seconds", now.age_seconds),
      fmt::arg("step", now.step),
      fmt::arg("taken", now.taken),
      fmt::arg("candidates", candidates),
      fmt::arg("lookups", lookups),
      fmt::arg("items", items));
}

}  // namespace tessera::serving
