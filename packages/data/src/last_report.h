// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/malformed_lines.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace tessera::data {

/// The report of one reader, for several threads.
class SharedReport {
 public:
  void set(const ReadReport& report) {
    const std::lock_guard<std::mutex> lock(mutex_);
    report_ = report;
  }
  ReadReport get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return report_;
  }

 private:
  mutable std::mutex mutex_;
  ReadReport report_;
};

/// The report of the last reader that a source has opened. Several readers may run at the
/// same time.
using LastReport = std::atomic<std::shared_ptr<SharedReport>>;

/// The report of a new reader.
inline std::shared_ptr<SharedReport> begin_report(LastReport& last) {
  auto report = std::make_shared<SharedReport>();
  last = report;
  return report;
}

}  // namespace tessera::data
