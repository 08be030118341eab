// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

/// The values that a request of /metrics reads.
struct MetricsNow {
  size_t queue_length = 0;
  int64_t version = 0;
  double age_seconds = 0.0;
  int64_t step = 0;
  int64_t taken = 0;
};

/// The counters of a server. All functions may be called from several threads.
class ServerMetrics {
 public:
  /// Counts a response. `path` is "other" for an unknown path.
  void count_response(const std::string& path, int status);
  /// Counts the time from the last byte of a request to its response.
  void count_seconds(const std::string& path, double seconds);
  void count_rejection(Rejection reason);
  /// Counts the requests that are scored together, or whose items are searched together.
  void count_batch(size_t requests);
  void add(Counter counter, int64_t change);

  /// All counters in the text format 0.0.4 of Prometheus.
  std::string text(const MetricsNow& now) const;

 private:
  // How many values are between two bounds, and beyond the last one.
  struct Histogram {
    std::array<uint64_t, 12> counts = {};
    uint64_t count = 0;
    double sum = 0.0;

    void add(double value, std::span<const double> bounds);
    void write(
        std::string& text,
        const std::string& name,
        const std::string& label,
        std::span<const double> bounds) const;
  };

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::pair<std::string, int>, uint64_t> responses_;
  std::map<std::string, Histogram> seconds_;
  std::array<uint64_t, kNumRejections> rejections_ = {};
  Histogram batches_;
  std::array<int64_t, kNumCounters> counters_ = {};
};

}  // namespace tessera::serving
