// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// The seed of one row's random bits.
struct RowKey {
  uint32_t low;
  uint32_t high;
};

/// Mixes key and row with the finalizer of splitmix64.
constexpr RowKey key_of_row(uint64_t key, int64_t row) {
  uint64_t x = key ^ (static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15ULL);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

}  // namespace tessera::kernels
