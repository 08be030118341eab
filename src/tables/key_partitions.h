// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/random_key.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace tessera {

/// A hash of a key. Different keys have different hashes.
constexpr uint64_t hash_of_key(int64_t key) {
  return mix_bits(static_cast<uint64_t>(key));
}

/// The partitions [begin, end).
struct PartitionRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const {
    return end - begin;
  }
  bool has(int64_t partition) const {
    return partition >= begin && partition < end;
  }
};

/// The partitions into which the keys of a key table hash. Each partition has a range
/// of the table's rows, and its own keys, sketch and evictions, so that threads and ranks
/// which own whole partitions give the same results.
class KeyPartitions {
 public:
  /// Rows have 16-bit numbers in a partition.
  static constexpr int64_t kMaxRows = int64_t{1} << 15;

  /// The number of partitions depends on `capacity` alone. Partitions of few rows fill
  /// unequally, and few partitions spread unequally over ranks.
  explicit KeyPartitions(int64_t capacity)
      : capacity_(capacity),
        count_(std::max<int64_t>(
            {1,
             std::min<int64_t>(256, capacity / 4096),
             (capacity + kMaxRows - 1) / kMaxRows})) {}

  int64_t capacity() const {
    return capacity_;
  }
  int64_t count() const {
    return count_;
  }
  PartitionRange all() const {
    return {0, count_};
  }
  int64_t first_row(int64_t partition) const {
    return capacity_ * partition / count_;
  }
  int64_t rows(int64_t partition) const {
    return first_row(partition + 1) - first_row(partition);
  }
  /// The rows of the largest partition.
  int64_t max_rows() const {
    return (capacity_ + count_ - 1) / count_;
  }
  int64_t of_hash(uint64_t hash) const {
    return static_cast<int64_t>(scaled(hash) >> 32);
  }
  /// Splits the hashes of each partition into ranges of about equal size, in ascending order.
  /// Returns the number of the range that has `hash`, in [0, buckets). There are up to 2^32
  /// buckets.
  int64_t bucket_of_hash(uint64_t hash, int64_t buckets) const {
    const uint64_t place = scaled(hash) & 0xFFFFFFFFU;  // in the partition
    return static_cast<int64_t>((place * static_cast<uint64_t>(buckets)) >> 32);
  }
  /// The partitions of `count` rows from `first` on, which must be whole partitions.
  PartitionRange in_rows(int64_t first, int64_t count) const {
    return count == 0
        ? PartitionRange{}
        : PartitionRange{of_row(first), of_row(first + count - 1) + 1};
  }
  int64_t of_row(int64_t row) const {
    return ((row + 1) * count_ - 1) / capacity_;
  }

 private:
  // The high half is the partition, and the low half is the place in it.
  uint64_t scaled(uint64_t hash) const {
    return (hash >> 32) * static_cast<uint64_t>(count_);
  }

  int64_t capacity_;
  int64_t count_;
};

/// Sorts items by hash_of(item). bucket_of(item), in [0, buckets), must not decrease if the
/// hash increases. Hashes are spread evenly, so the bucket is nearly the right place. Without
/// buckets, std::sort() took twice as long.
template <class Item, class BucketOf, class HashOf>
void sort_by_hash(
    std::vector<Item>& items,
    int64_t buckets,
    const BucketOf& bucket_of,
    const HashOf& hash_of) {
  // At first, these are the sizes of the buckets.
  std::vector<uint32_t> begin(buckets + 1, 0);
  for (const Item& item : items) {
    ++begin[bucket_of(item)];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<Item> sorted(items.size());
  for (const Item& item : items) {
    sorted[--begin[bucket_of(item)]] = item;
  }
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    if (begin[bucket + 1] - begin[bucket] > 1) {
      std::ranges::sort(
          sorted.begin() + begin[bucket],
          sorted.begin() + begin[bucket + 1],
          {},
          hash_of);
    }
  }
  items = std::move(sorted);
}

}  // namespace tessera
