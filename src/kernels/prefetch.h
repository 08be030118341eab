// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::kernels {

inline constexpr int64_t kLineBytes = 64;

/// Rows of up to this many bytes are narrow. Lookups prefetch more of them ahead.
inline constexpr int64_t kNarrowRowBytes = 128;

/// Prefetches the cache line of `address`. GCC removes calls of a function that only prefetches,
/// because it sees no effect. It takes the empty asm statement for an effect.
inline void prefetch_line(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

/// Prefetches a row of a table or a slot, whose rows have `row_bytes` bytes each.
inline void prefetch_row(const void* rows, int64_t row_bytes, uint32_t row) {
  const char* begin =
      static_cast<const char*>(rows) + static_cast<int64_t>(row) * row_bytes;
  for (int64_t byte = 0; byte < row_bytes; byte += kLineBytes) {
    prefetch_line(begin + byte);
  }
}

/// How many items ahead of its use an item of `bytes` bytes is prefetched. The items in
/// flight fill a third of a small first-level cache. With 4 KiB in flight, a pooled lookup
/// of rows in the second-level cache took twice as long. The upper limit keeps narrow items
/// from being fetched too early.
constexpr int64_t prefetch_distance(int64_t bytes) {
  constexpr int64_t kBytesInFlight = 12 * 1024;
  return std::clamp<int64_t>(
      kBytesInFlight / std::max<int64_t>(bytes, 1), 4, 64);
}

/// How many rows ahead of its use an update prefetches a row to the second-level cache. A
/// row has `bytes` bytes with its slots. More lines can be on their way to this cache than
/// to the first-level cache. With this prefetch, the update by Adagrad took half the time
/// for rows of 16 floats, and 0.7 to 0.85 times as long for rows of 64 floats, on one core
/// of Zen 5.
constexpr int64_t update_prefetch_distance(int64_t bytes) {
  constexpr int64_t kBytesInFlight = 32 * 1024;
  return std::clamp<int64_t>(
      kBytesInFlight / std::max<int64_t>(bytes, 1), 8, 64);
}

/// How many contributions ahead of its use an update prefetches a wide row from the second-
/// to the first-level cache.
inline constexpr int64_t kNearRows = 4;

/// How many rows ahead of its use a row whose gradient is summed already is prefetched to the
/// first-level cache. With this prefetch, updates of rows of 16 or 32 floats took 0.65 to 0.9
/// times as long by Adagrad and Adam, and 0.9 to 1.0 times by SGD, on one core of Zen 3.
/// Distances from 8 to 48 were equal.
inline constexpr int64_t kNearSummedRows = 16;

/// How many rows ahead of its use a lookup prefetches a row to the second-level cache. More
/// lines can be on their way to this cache than to the first-level cache. With this prefetch,
/// a lookup of rows of 64 bytes took 0.8 times as long on Zen 5, and one of 256 or 512 bytes
/// took 0.75 to 0.8 times as long on Intel Xeon.
constexpr int64_t far_prefetch_distance(int64_t bytes) {
  const int64_t bytes_in_flight = (bytes > kNarrowRowBytes ? 48 : 16) * 1024;
  return std::clamp<int64_t>(
      bytes_in_flight / std::max<int64_t>(bytes, 1), 8, 512);
}

/// How many rows ahead of its use a lookup prefetches a row to the first-level cache, if
/// it has prefetched the row to the second-level cache before. So a few rows ahead are
/// enough for wide rows.
constexpr int64_t near_prefetch_distance(int64_t bytes) {
  constexpr int64_t kBytesInFlight = 2 * 1024;
  return bytes > kNarrowRowBytes
      ? std::clamp<int64_t>(kBytesInFlight / bytes, 4, 64)
      : prefetch_distance(bytes);
}

/// Lookups assume that a table of up to this size is in the second-level cache, which is
/// true for caches of 1 MiB or more. They do not prefetch its rows to this cache. With
/// such a prefetch, lookups of wide rows took 1.15 to 1.25 times as long on Intel Xeon.
inline constexpr int64_t kCachedTableBytes = int64_t{1024} * 1024;

/// A distance beyond every row, so nothing is prefetched.
inline constexpr int64_t kNoPrefetch = int64_t{1} << 60;

/// How many quantized rows ahead of its use a row is prefetched to the second-level cache.
/// With this prefetch, a lookup of random rows of 72 bytes took 0.9 times as long on Intel
/// Xeon.
constexpr int64_t quantized_prefetch_distance(int64_t bytes) {
  constexpr int64_t kBytesInFlight = 16 * 1024;
  return std::clamp<int64_t>(
      kBytesInFlight / std::max<int64_t>(bytes, 1), 8, 512);
}

}  // namespace tessera::kernels
