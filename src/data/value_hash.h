// SPDX-License-Identifier: Apache-2.0
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstdint>
#include <string>

namespace tessera {

// Files and tables outlive programs: these numbers must never change.

inline uint64_t hash_of(int64_t value, uint64_t seed) {
  std::array<unsigned char, 8> bytes;  // the least significant first
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] =
        static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

inline uint64_t hash_of(const std::string& value, uint64_t seed) {
  return XXH3_64bits_withSeed(value.data(), value.size(), seed);
}

/// Of a sequence of values; their order matters.
inline uint64_t combine_hashes(uint64_t first, uint64_t second) {
  return hash_of(static_cast<int64_t>(second), first);
}

}  // namespace tessera
