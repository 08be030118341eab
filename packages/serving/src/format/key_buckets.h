// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/key_partitions.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace tessera::serving {

/// The keys of a base are in buckets of one cache line each, so that a mapped file is a
/// hash table. A key whose bucket is full is in the next bucket that has room.
struct KeyBucket {
  static constexpr uint32_t kSize = 5;

  int64_t keys[kSize];
  uint32_t rows[kSize];
  uint32_t size;
};
static_assert(sizeof(KeyBucket) == 64);

inline constexpr uint32_t kNoKeyRow = std::numeric_limits<uint32_t>::max();

/// The number of buckets for so many keys. At most 60 % of the places are used.
constexpr int64_t key_buckets_for(int64_t keys) {
  return keys / 3 + 1;
}

/// The bucket in which the search for a key begins.
inline int64_t home_bucket(int64_t key, int64_t buckets) {
  const unsigned __int128 product =
      static_cast<unsigned __int128>(hash_of_key(key)) *
      static_cast<uint64_t>(buckets);
  return static_cast<int64_t>(product >> 64);
}

/// The row of the key, or kNoKeyRow.
inline uint32_t find_key(const KeyBucket* buckets, int64_t count, int64_t key) {
  int64_t at = home_bucket(key, count);
  for (int64_t visited = 0; visited < count; ++visited) {
    const KeyBucket& bucket = buckets[at];
    const uint32_t size = std::min(bucket.size, KeyBucket::kSize);
    for (uint32_t i = 0; i < size; ++i) {
      if (bucket.keys[i] == key) {
        return bucket.rows[i];
      }
    }
    if (size < KeyBucket::kSize) {
      return kNoKeyRow;
    }
    at = at + 1 == count ? 0 : at + 1;
  }
  return kNoKeyRow;
}

/// Makes the buckets of a base in which row i has keys[i].
inline std::vector<KeyBucket> make_key_buckets(
    const std::vector<int64_t>& keys) {
  const int64_t count = key_buckets_for(std::ssize(keys));
  std::vector<KeyBucket> buckets(static_cast<size_t>(count), KeyBucket{});
  for (size_t i = 0; i < keys.size(); ++i) {
    int64_t at = home_bucket(keys[i], count);
    while (buckets[at].size == KeyBucket::kSize) {
      at = at + 1 == count ? 0 : at + 1;
    }
    KeyBucket& bucket = buckets[at];
    bucket.keys[bucket.size] = keys[i];
    bucket.rows[bucket.size++] = static_cast<uint32_t>(i);
  }
  return buckets;
}

}  // namespace tessera::serving
