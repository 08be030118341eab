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

constexpr std::array kReasons{
    "queue_full",
    "deadline",
    "connections",
    "body_size",
    "header_size",
    "slow_client",
    "memory"};

template <class... Args>
void add_line(
    std::string& text,
    fmt::format_string<Args...> format,
    Args&&... values) {
  fmt::format_to(
      std::back_inserter(text), format, std::forward<Args>(values)...);
  text += '\n';
}

void add_title(
    std::string& text,
    const char* name,
    const char* type,
    const char* help) {
  add_line(text, "# HELP {} {}", name, help);
  add_line(text, "# TYPE {} {}", name, type);
}

template <class T>
void add_value(
    std::string& text,
    const char* name,
    const char* type,
    const char* help,
    T value) {
  add_title(text, name, type, help);
  add_line(text, "{} {}", name, value);
}

}  // namespace

void ServerMetrics::Histogram::add(
    double value,
    std::span<const double> bounds) {
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), value);
  ++counts.at(static_cast<size_t>(bound - bounds.begin()));
  ++count;
  sum += value;
}

void ServerMetrics::Histogram::write(
    std::string& text,
    const std::string& name,
    const std::string& label,
    std::span<const double> bounds) const {
  uint64_t total = 0;
  const char* comma = label.empty() ? "" : ",";
  for (size_t i = 0; i < bounds.size(); ++i) {
    total += counts.at(i);
    add_line(
        text,
        "{}_bucket{{{}{}le=\"{}\"}} {}",
        name,
        label,
        comma,
        bounds[i],
        total);
  }
  add_line(text, "{}_bucket{{{}{}le=\"+Inf\"}} {}", name, label, comma, count);
  const std::string braces = label.empty() ? "" : "{" + label + "}";
  add_line(text, "{}_sum{} {}", name, braces, sum);
  add_line(text, "{}_count{} {}", name, braces, count);
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
  ++rejections_[reason];
}

void ServerMetrics::count_connections(int64_t change) {
  const std::lock_guard<std::mutex> lock(mutex_);
  connections_ += change;
}

void ServerMetrics::count_batch(size_t requests) {
  const std::lock_guard<std::mutex> lock(mutex_);
  batches_.add(static_cast<double>(requests), kBatchBounds);
}

void ServerMetrics::count_candidates(int64_t candidates) {
  const std::lock_guard<std::mutex> lock(mutex_);
  candidates_ += static_cast<uint64_t>(candidates);
}

void ServerMetrics::count_lookups(size_t ids) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lookups_ += ids;
}

std::string ServerMetrics::text(const MetricsNow& now) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  add_title(
      text,
      "tessera_requests_total",
      "counter",
      "Responses by path and status.");
  for (const auto& [key, count] : responses_) {
    add_line(
        text,
        "tessera_requests_total{{path=\"{}\",code=\"{}\"}} {}",
        key.first,
        key.second,
        count);
  }
  add_title(
      text,
      "tessera_request_seconds",
      "histogram",
      "Time from the last byte of a request to its response.");
  for (const auto& [path, histogram] : seconds_) {
    histogram.write(
        text,
        "tessera_request_seconds",
        fmt::format("path=\"{}\"", path),
        kSecondsBounds);
  }
  add_title(
      text,
      "tessera_batch_requests",
      "histogram",
      "Requests that one call of the score function gets.");
  batches_.write(text, "tessera_batch_requests", "", kBatchBounds);
  add_title(
      text,
      "tessera_rejected_total",
      "counter",
      "Requests and connections that were refused, by reason.");
  for (size_t i = 0; i < kReasons.size(); ++i) {
    const auto found = rejections_.find(static_cast<Rejection>(i));
    add_line(
        text,
        "tessera_rejected_total{{reason=\"{}\"}} {}",
        kReasons.at(i),
        found == rejections_.end() ? 0 : found->second);
  }
  add_value(
      text,
      "tessera_queue_length",
      "gauge",
      "Requests that wait for a thread.",
      now.queue_length);
  add_value(
      text,
      "tessera_connections",
      "gauge",
      "Connections that are open.",
      connections_);
  add_value(
      text,
      "tessera_version",
      "gauge",
      "The version that serves.",
      now.version);
  add_value(
      text,
      "tessera_version_age_seconds",
      "gauge",
      "Time since the version was published.",
      now.age_seconds);
  add_value(
      text,
      "tessera_version_step",
      "gauge",
      "The step of the training at which the version was published.",
      now.step);
  add_value(
      text,
      "tessera_versions_taken_total",
      "counter",
      "Versions that the reader has taken.",
      now.taken);
  add_value(
      text,
      "tessera_candidates_total",
      "counter",
      "Candidates that were scored.",
      candidates_);
  add_value(
      text,
      "tessera_lookups_total",
      "counter",
      "Ids that /lookup has looked up.",
      lookups_);
  return text;
}

}  // namespace tessera::serving
