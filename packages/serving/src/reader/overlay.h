// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/active_kernels.h"
#include "src/kernels/overlaid_rows.h"
#include "src/tables/key_partitions.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tessera::serving {

// The rows that have changed since a base. Overlays never change. A new one shares all
// chunks with the old one in which no row has changed.

/// The changed rows of a table with a vocabulary, by their numbers.
class RowOverlay {
 public:
  explicit RowOverlay(int64_t rows);

  /// Finds the rows args.ids, of which those that have not changed are in args.table.
  void locate(kernels::LocateArgs args) const {
    args.chunks = words_.data();
    active_kernels().locate(args);
  }

  /// An overlay in which also rows[i] is at first + i * row_bytes. `rows` ascend and are
  /// below the number of rows.
  std::shared_ptr<const RowOverlay> with(
      std::span<const uint32_t> rows,
      const std::byte* first,
      int64_t row_bytes) const;

  int64_t size() const {
    return size_;
  }

 private:
  static constexpr uint32_t kChunkRows = kernels::LocateArgs::kChunkRows;

  struct Chunk {
    Chunk() = default;
    /// `old` with the rows `changed`, which are one after the other from `first` on.
    Chunk(
        const Chunk& old,
        std::span<const uint32_t> changed,
        const std::byte* first,
        int64_t row_bytes);
    Chunk(const Chunk&) = delete;  // the words point to the rows
    Chunk& operator=(const Chunk&) = delete;

    std::array<kernels::OverlaidWord, kChunkRows / 64> words = {};
    std::vector<const void*> rows = {};
  };
  RowOverlay(const RowOverlay&) = default;

  std::vector<std::shared_ptr<const Chunk>> chunks_;  // nullptr: no row changed
  std::vector<const kernels::OverlaidWord*> words_;  // of each chunk
  int64_t size_ = 0;
};

/// The changed rows of a table with keys, and the keys that have lost their rows.
class KeyOverlay {
 public:
  /// `capacity`: the largest number of keys.
  explicit KeyOverlay(int64_t capacity);

  enum class Found { kNo, kRow, kRemoved };
  struct Place {
    Found found = Found::kNo;
    const std::byte* row = nullptr;
  };
  Place find(int64_t key) const;
  /// Prefetches what find() reads.
  void prefetch(int64_t key) const;

  struct Change {
    int64_t key = 0;
    const std::byte* row = nullptr;  // nullptr: removed
  };
  /// An overlay with these changes. If a key is there twice, the last one counts.
  std::shared_ptr<const KeyOverlay> with(std::vector<Change> changes) const;

  /// The keys with a changed row.
  int64_t size() const {
    return size_;
  }

 private:
  struct Slot {
    int64_t key = 0;
    const std::byte* row = nullptr;
    Found found = Found::kNo;
  };
  // A hash table with open addressing. Its size is a power of two, and half of it is free.
  struct Chunk {
    std::vector<Slot> slots = {};
  };
  KeyOverlay(const KeyOverlay&) = default;

  size_t chunk_of(uint64_t hash) const {
    return static_cast<size_t>(
        ((hash >> 32) * static_cast<uint64_t>(chunks_.size())) >> 32);
  }

  std::vector<std::shared_ptr<const Chunk>> chunks_;
  int64_t size_ = 0;
};

}  // namespace tessera::serving
