// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera {

/// A number that several threads may change at the same time. Unlike std::atomic, it
/// can be copied.
class AtomicCount {
 public:
  AtomicCount(int64_t value = 0)  // NOLINT(google-explicit-constructor)
      : value_(value) {}
  AtomicCount(const AtomicCount& other) : value_(other.value_.load()) {}
  AtomicCount& operator=(const AtomicCount& other) {
    value_ = other.value_.load();
    return *this;
  }

  operator int64_t() const {  // NOLINT(google-explicit-constructor)
    return value_;
  }
  AtomicCount& operator+=(int64_t difference) {
    value_ += difference;
    return *this;
  }
  /// Sets the number to `value` if it is `before`. Returns the new number.
  int64_t set_once(int64_t before, int64_t value) {
    return value_.compare_exchange_strong(before, value) ? value : before;
  }

 private:
  std::atomic<int64_t> value_;
};

}  // namespace tessera
