// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/malformed_lines.h>

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
class LastReport {
 public:
  /// The report of a new reader.
  std::shared_ptr<SharedReport> begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_ = std::make_shared<SharedReport>();
  }
  ReadReport get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_->get();
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<SharedReport> last_ = std::make_shared<SharedReport>();
};

}  // namespace tessera::data
