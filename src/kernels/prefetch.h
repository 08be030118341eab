// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::kernels {

inline constexpr int64_t kLineBytes = 64;

/// How many items ahead of its use an item of `bytes` bytes is prefetched. The items in
/// flight fill a third of a small first-level cache. The limits keep narrow items from
/// being fetched too early.
constexpr int64_t prefetch_distance(int64_t bytes) {
  constexpr int64_t kBytesInFlight = 12 * 1024;
  return std::clamp<int64_t>(
      kBytesInFlight / std::max<int64_t>(bytes, 1), 4, 48);
}

}  // namespace tessera::kernels
