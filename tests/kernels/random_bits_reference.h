// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// A second implementation of the kernels' random bits, from the finalizers of
/// splitmix64 and MurmurHash3.
inline uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6BU;
  x = (x ^ (x >> 13)) * 0xC2B2AE35U;
  return x ^ (x >> 16);
}

inline uint64_t mixed_key(uint64_t key, uint64_t row) {
  uint64_t y = key ^ (row * 0x9E3779B97F4A7C15ULL);
  y = (y ^ (y >> 30)) * 0xBF58476D1CE4E5B9ULL;
  y = (y ^ (y >> 27)) * 0x94D049BB133111EBULL;
  return y ^ (y >> 31);
}

inline uint32_t random_bits(uint64_t key, uint64_t row, uint32_t column) {
  const uint64_t y = mixed_key(key, row);
  const uint32_t x = mix(static_cast<uint32_t>(y) + column * 0x9E3779B9U);
  return mix(x ^ static_cast<uint32_t>(y >> 32));
}

/// The 16 bits that decide how a column is rounded.
inline uint32_t rounding_bits(uint64_t key, uint64_t row, uint32_t column) {
  const uint64_t y = mixed_key(key, row);
  uint32_t x = static_cast<uint32_t>(y) + (column / 2) * 0x9E3779B9U;
  x = (x ^ (x >> 16)) * 0x85EBCA6BU;
  x ^= static_cast<uint32_t>(y >> 32);
  x = (x ^ (x >> 13)) * 0xC2B2AE35U;
  x ^= x >> 16;
  return column % 2 == 0 ? x & 0xFFFF : x >> 16;
}

}  // namespace tessera::kernels
