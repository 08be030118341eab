// SPDX-License-Identifier: Apache-2.0
#include "src/tables/key_snapshot.h"

#include "src/common/parallel.h"
#include "src/tables/row_checksums.h"

#include <algorithm>
#include <bit>

namespace tessera {

namespace {

// The position of the first entry of each partition that has entries, and the end. The
// entries are ordered by partition.
std::vector<size_t> partition_begins(
    const KeyPartitions& partitions,
    const std::vector<KeyEntry>& entries) {
  std::vector<size_t> begins;
  int64_t last = -1;
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t partition = partitions.of_hash(hash_of_key(entries[i].key));
    if (partition != last) {
      begins.push_back(i);
      last = partition;
    }
  }
  begins.push_back(entries.size());
  return begins;
}

// Stands for the numbers of a key that decide about its eviction.
uint64_t score_bits(const KeyEntry& entry) {
  return (uint64_t{entry.last_update} << 32) |
      std::bit_cast<uint32_t>(entry.frequency);
}

}  // namespace

std::vector<KeyEntry> entries_by_hash(const KeyIndex& index) {
  std::vector<KeyEntry> entries = index.entries();
  const std::vector<size_t> begins =
      partition_begins(index.partitions(), entries);
  // The high bits of a hash choose the partition, so each can be sorted by itself.
  run_tasks(
      static_cast<int64_t>(begins.size()) - 1,
      static_cast<int64_t>(entries.size() * sizeof(KeyEntry)) * 4,
      [&](int64_t i) {
        std::sort(
            entries.begin() + static_cast<std::ptrdiff_t>(begins[i]),
            entries.begin() + static_cast<std::ptrdiff_t>(begins[i + 1]),
            [](const KeyEntry& a, const KeyEntry& b) {
              return hash_of_key(a.key) < hash_of_key(b.key);
            });
      });
  return entries;
}

KeySnapshot::KeySnapshot(
    const TableState& table,
    const std::vector<KeyEntry>& entries)
    : entries_(entries.size()) {
  const RowChecksums rows(table);
  const auto count = static_cast<int64_t>(entries.size());
  const int64_t step = rows.rows_per_task();
  run_tasks(
      (count + step - 1) / step, count * rows.row_bytes(), [&](int64_t task) {
        const int64_t end = std::min(count, (task + 1) * step);
        for (int64_t i = task * step; i < end; ++i) {
          const KeyEntry& entry = entries[i];
          entries_[i] = {
              entry.key, rows.checksum(entry.row, score_bits(entry))};
        }
      });
}

KeySnapshot::Changes KeySnapshot::until(const KeySnapshot& later) const {
  Changes changes;
  auto before = entries_.begin();
  const auto remove_until = [&](uint64_t hash) {
    for (; before != entries_.end() && hash_of_key(before->key) < hash;
         ++before) {
      changes.removed.push_back(before->key);
    }
  };
  for (size_t i = 0; i < later.entries_.size(); ++i) {
    const Entry& entry = later.entries_[i];
    remove_until(hash_of_key(entry.key));
    if (before == entries_.end() || before->key != entry.key) {
      changes.changed.push_back(i);
      continue;
    }
    if (before->checksum != entry.checksum) {
      changes.changed.push_back(i);
    }
    ++before;
  }
  for (; before != entries_.end(); ++before) {
    changes.removed.push_back(before->key);
  }
  return changes;
}

}  // namespace tessera
