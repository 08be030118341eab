// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

/// Stands for a key without a row.
inline constexpr uint32_t kNoRow = std::numeric_limits<uint32_t>::max();

/// Occurrences of keys in one update.
struct KeyOccurrences {
  const int64_t* keys = nullptr;  // [size]
  /// The row that each key had when it was looked up, or a number >= KeyIndex::rows() if it
  /// had none. nullptr: no key had a row. A key that had a row and has none now was evicted
  /// in between, and its occurrence is dropped.
  const uint32_t* looked_up = nullptr;  // [size]
  /// KeyIndex::version() at that lookup. Unset: `looked_up` only tells which keys had a
  /// row.
  std::optional<uint64_t> version = {};
  /// KeyIndex::insertions() at that lookup. If it is still the same, keys that had no row
  /// have none. Unset: they are searched.
  std::optional<uint64_t> insertions = {};
  /// How often each key occurred, at least once. nullptr: once.
  const uint32_t* counts = nullptr;  // [size]
  int64_t size = 0;
  /// The row of each occurrence after the update, or kNoRow. plan() writes it.
  uint32_t* rows = nullptr;  // [size]
};

/// A key, its row, and what decides about its eviction.
struct KeyEntry {
  int64_t key = 0;
  uint32_t row = 0;
  uint32_t last_update = 0;
  float frequency = 0.0F;  // of eviction::LeastFrequentlyUsed, else 0

  bool operator==(const KeyEntry&) const = default;
};

/// How often keys have changed since the table was made.
struct KeyCounts {
  int64_t admitted = 0;
  int64_t evicted = 0;
  /// The occurrences in updates that were dropped, because their keys were evicted after
  /// the lookup.
  int64_t dropped = 0;

  bool operator==(const KeyCounts&) const = default;
};

/// The changes that one update makes to the keys of a table.
struct KeyPlan {
  /// A key that had a row before the update, and occurred.
  struct Used {
    uint32_t row;
    float frequency;  // after the update
  };
  /// The changes of one partition. A few changes need no allocation, because large tables
  /// have hundreds of partitions.
  struct Part {
    std::vector<Used> used = {};
    c10::SmallVector<KeyEntry, 16> inserted = {};
    c10::SmallVector<uint32_t, 16> evicted = {};  // rows
    /// Keys without a row, with their occurrences, which the sketch counts.
    std::vector<std::pair<int64_t, uint32_t>> counted = {};
    int64_t dropped = 0;  // see KeyCounts
  };
  std::vector<Part> parts = {};  // [owned partitions]
  /// KeyOccurrences::rows of the terms whose lookups the plan trusts. Most of their
  /// occurrences are in no part. These arrays must not change before apply(). A caller may
  /// clear this list, and call KeyIndex::record_use() for these rows after apply().
  std::vector<c10::ArrayRef<uint32_t>> used_rows = {};
  uint32_t update = 0;
};

/// Calls visit(i) for each i in [begin, end) with values[i] == value. This is fast if
/// there are few such i. visit(i) may change values[i].
template <class Visit>
void visit_equal(
    const uint32_t* values,
    int64_t begin,
    int64_t end,
    uint32_t value,
    const Visit& visit) {
  constexpr int64_t kBlock = 64;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t last = std::min(end, first + kBlock);
    // This loop has no early exit, so that the compiler uses vector instructions.
    uint32_t num_equal = 0;
    for (int64_t i = first; i < last; ++i) {
      num_equal += values[i] == value ? 1 : 0;
    }
    for (int64_t i = first; i < last && num_equal > 0; ++i) {
      if (values[i] == value) {
        visit(i);
        --num_equal;
      }
    }
  }
}

}  // namespace tessera
