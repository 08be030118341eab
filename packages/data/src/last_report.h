// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/malformed_lines.h>

#include <memory>
#include <mutex>
#include <utility>

namespace tessera::data {

/// The report of the last reader that a source has opened. Several readers may run at the
/// same time.
class LastReport {
  struct Shared {
    std::mutex mutex;
    ReadReport report;
  };

 public:
  /// Stores the report of one reader.
  class Writer {
   public:
    explicit Writer(std::shared_ptr<Shared> shared)
        : shared_(std::move(shared)) {}

    void set(const ReadReport& report) const {
      const std::lock_guard<std::mutex> lock(shared_->mutex);
      shared_->report = report;
    }

   private:
    std::shared_ptr<Shared> shared_;
  };

  /// Begins the report of a new reader.
  Writer begin() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    last_ = std::make_shared<Shared>();
    return Writer(last_);
  }

  ReadReport get() const {
    std::shared_ptr<Shared> last;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      last = last_;
    }
    const std::lock_guard<std::mutex> lock(last->mutex);
    return last->report;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Shared> last_ = std::make_shared<Shared>();
};

}  // namespace tessera::data
