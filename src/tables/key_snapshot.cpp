// SPDX-License-Identifier: Apache-2.0
#include "src/tables/key_snapshot.h"

#include "src/common/checksum.h"
#include "src/common/parallel.h"
#include "src/tables/key_table_rows.h"
#include "src/tables/row_checksums.h"

#include <algorithm>
#include <bit>

namespace tessera {

namespace {

constexpr const char* kWhat = "the keys of a checkpoint";

// Packs the numbers of a key that decide about its eviction.
uint64_t score_bits(const KeyEntry& entry) {
  return (uint64_t{entry.last_update} << 32) |
      std::bit_cast<uint32_t>(entry.frequency);
}

}  // namespace

KeyList list_keys(
    const KeyIndex& index,
    c10::function_ref<bool(const KeyEntry&)> takes) {
  const int64_t partitions = index.owned().count();
  const int64_t bytes =
      index.size() * static_cast<int64_t>(sizeof(KeyEntry)) * 4;
  std::vector<int64_t> begin(partitions + 1, 0);
  run_tasks(partitions, bytes, [&](int64_t p) {
    // If threads counted in `begin`, they would wait for each other's cache lines.
    int64_t count = 0;
    index.visit_entries(
        p, [&](const KeyEntry& entry) { count += takes(entry) ? 1 : 0; });
    begin[p + 1] = count;
  });
  for (int64_t p = 0; p < partitions; ++p) {
    begin[p + 1] += begin[p];
  }
  const int64_t size = begin.back();
  KeyList list{
      .rows = {size, kWhat},
      .keys = {size, kWhat},
      .updates = {size, kWhat},
      .frequencies = {size, kWhat}};
  run_tasks(partitions, bytes, [&](int64_t p) {
    std::vector<KeyEntry> entries;
    entries.reserve(begin[p + 1] - begin[p]);
    index.visit_entries(p, [&](const KeyEntry& entry) {
      if (takes(entry)) {
        entries.push_back(entry);
      }
    });
    const int64_t buckets = std::ssize(entries);
    const auto hash_of = [](const KeyEntry& entry) {
      return hash_of_key(entry.key);
    };
    const auto bucket_of = [&](const KeyEntry& entry) {
      return index.partitions().bucket_of_hash(hash_of(entry), buckets);
    };
    sort_by_hash(entries, buckets, bucket_of, hash_of);
    int64_t i = begin[p];
    for (const KeyEntry& entry : entries) {
      list.rows[i] = entry.row;
      list.keys[i] = entry.key;
      list.updates[i] = entry.last_update;
      list.frequencies[i] = entry.frequency;
      ++i;
    }
  });
  return list;
}

KeySnapshot::KeySnapshot(const TableState& table)
    : entries_(table.key_rows->index().rows(), kWhat) {
  const KeyIndex& index = table.key_rows->index();
  index.visit_used_rows([&](int64_t first, int64_t count) {
    used_.push_back({first, count});
  });
  const c10::ArrayRef<uint8_t> sketch = index.sketch();
  sketch_checksum_ = checksum_of(
      {reinterpret_cast<const char*>(sketch.data()), sketch.size()});
  const RowChecksums rows(table);
  run_tasks(
      index.owned().count(), index.size() * rows.row_bytes(), [&](int64_t p) {
        const auto [first, count] = used_[p];
        std::vector<uint64_t> scores(count);
        std::vector<bool> has_key(count);
        index.visit_entries(p, [&](const KeyEntry& entry) {
          entries_[entry.row].key = entry.key;
          scores[entry.row - first] = score_bits(entry);
          has_key[entry.row - first] = true;
        });
        for (int64_t i = 0; i < count; ++i) {
          if (has_key[i]) {
            entries_[first + i].checksum =
                std::max<uint64_t>(1, rows.checksum(first + i, scores[i]));
          }
        }
      });
}

KeySnapshot::Changes KeySnapshot::until(
    const KeySnapshot& now,
    const KeyIndex& index) const {
  const std::vector<std::vector<Entry>> lost = lost_entries(now);
  const auto has_changed = [&](const KeyEntry& entry) {
    const Entry& before = entries_[entry.row];
    const Entry& later = now.entries_[entry.row];
    if (before.checksum != 0 && before.key == later.key) {
      return before.checksum != later.checksum;
    }
    const uint64_t hash = hash_of_key(later.key);
    const std::vector<Entry>& others =
        lost[index.partitions().of_hash(hash) - index.owned().begin];
    const auto moved =
        std::ranges::lower_bound(others, hash, {}, hash_of_entry);
    return moved == others.end() || *moved != later;
  };
  return {
      .changed = list_keys(index, has_changed),
      .removed = removed_keys(lost, index),
      .has_new_sketch = sketch_checksum_ != now.sketch_checksum_};
}

std::vector<std::vector<KeySnapshot::Entry>> KeySnapshot::lost_entries(
    const KeySnapshot& now) const {
  std::vector<std::vector<Entry>> lost(used_.size());
  run_tasks(
      std::ssize(used_),
      entries_.size() * static_cast<int64_t>(sizeof(Entry)) * 2,
      [&](int64_t p) {
        const auto [first, count] = used_[p];
        for (int64_t row = first; row < first + count; ++row) {
          const Entry& before = entries_[row];
          const Entry& later = now.entries_[row];
          if (before.checksum != 0 &&
              (later.checksum == 0 || later.key != before.key)) {
            lost[p].push_back(before);
          }
        }
        std::ranges::sort(lost[p], {}, hash_of_entry);
      });
  return lost;
}

std::vector<int64_t> KeySnapshot::removed_keys(
    const std::vector<std::vector<Entry>>& lost,
    const KeyIndex& index) {
  std::vector<int64_t> keys;
  for (const std::vector<Entry>& entries : lost) {
    for (const Entry& entry : entries) {
      keys.push_back(entry.key);
    }
  }
  std::vector<uint32_t> rows(keys.size());
  index.find(keys.data(), std::ssize(keys), rows.data());
  std::vector<int64_t> removed;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] == kNoRow) {
      removed.push_back(keys[i]);
    }
  }
  return removed;
}

uint64_t KeySnapshot::hash_of_entry(const Entry& entry) {
  return hash_of_key(entry.key);
}

}  // namespace tessera
