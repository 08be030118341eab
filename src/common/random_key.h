// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// The finalizer of splitmix64. It maps neighbouring numbers to unrelated ones.
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// Returns the key of a table's random values. It differs for each pair of seed and name.
constexpr uint64_t random_key(uint64_t seed, std::string_view table_name) {
  // FNV-1a: the same on every machine, unlike std::hash.
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : table_name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return mix_bits(seed ^ hash);
}

}  // namespace tessera
