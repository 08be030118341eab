// SPDX-License-Identifier: Apache-2.0
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::data {

// These hashes must never change, because saved tables and files depend on them.

inline uint64_t hash_of(int64_t value, uint64_t seed) {
  auto bytes = static_cast<uint64_t>(value);  // the least significant first
  if constexpr (std::endian::native == std::endian::big) {
    bytes = __builtin_bswap64(bytes);
  }
  return XXH3_64bits_withSeed(&bytes, sizeof(bytes), seed);
}

inline uint64_t hash_of(const std::string& value, uint64_t seed) {
  return XXH3_64bits_withSeed(value.data(), value.size(), seed);
}

/// Hashes integers and text for maps.
struct ValueHasher {
  size_t operator()(const auto& value) const {
    return hash_of(value, 0);
  }
};

/// Joins two hashes. Their order matters.
inline uint64_t combine_hashes(uint64_t first, uint64_t second) {
  return hash_of(static_cast<int64_t>(second), first);
}

}  // namespace tessera::data
