// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/data/src/value_hash.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::data {

/// Finds the positions of values in a list without copying the list. A hash table with
/// open addressing and linear probing, at most half full, with 16 to 32 bytes per value.
template <class T>
class ValueIndex {
 public:
  static constexpr int64_t kMaxSize = int64_t{1} << 30;

  /// `values` has at most kMaxSize entries and must outlive the index.
  explicit ValueIndex(const std::vector<T>& values)
      : values_(values.data()), slots_(std::bit_ceil(2 * values.size() + 1)) {
    for (size_t i = 0; i < values.size() && !repeated_; ++i) {
      const uint64_t hash = hash_of(values[i], 0);
      Slot& slot = slots_[slot_of(values[i], hash)];
      if (slot.position >= 0) {
        repeated_ = static_cast<int64_t>(i);
      }
      slot = {tag_of(hash), static_cast<int32_t>(i)};
    }
  }

  /// The position at which a value appears for the second time. The values after it
  /// are not in the index.
  std::optional<int64_t> repeated() const {
    return repeated_;
  }

  /// The position of the value, or -1 if it is not in the list. `hash` must be
  /// hash_of(value, 0).
  int64_t find(const T& value, uint64_t hash) const {
    return slots_[slot_of(value, hash)].position;
  }

 private:
  struct Slot {
    uint32_t tag = 0;  // saves most comparisons with different values
    int32_t position = -1;
  };

  static uint32_t tag_of(uint64_t hash) {
    return static_cast<uint32_t>(hash >> 32);
  }

  // The slot of the value, or the free slot where it would be.
  size_t slot_of(const T& value, uint64_t hash) const {
    size_t i = hash & (slots_.size() - 1);
    while (slots_[i].position >= 0 &&
           (slots_[i].tag != tag_of(hash) ||
            values_[slots_[i].position] != value)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    return i;
  }

  const T* values_;
  std::vector<Slot> slots_;
  std::optional<int64_t> repeated_ = {};
};

}  // namespace tessera::data
