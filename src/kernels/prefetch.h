// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::kernels {

inline constexpr int64_t kLineBytes = 64;

/// How many items to fetch ahead of their use, each of `bytes` that lie
/// anywhere in memory: as many as fill a third of a small first-level cache, few
/// enough that narrow ones do not run far ahead of what is needed.
constexpr int64_t prefetch_distance(int64_t bytes) {
  constexpr int64_t kBytesInFlight = 12 * 1024;
  return std::clamp<int64_t>(
      kBytesInFlight / std::max<int64_t>(bytes, 1), 4, 48);
}

}  // namespace tessera::kernels
