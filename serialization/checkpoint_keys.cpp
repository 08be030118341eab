// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_keys.h"

#include <tessera/common/shorten.h>

#include "serialization/checkpoint_input.h"
#include "src/common/check.h"
#include "src/common/rank_group.h"
#include "src/tables/key_table_rows.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

namespace tessera {

namespace {

// The numbers that the ranks exchange about one table.
struct RankKeys {
  int64_t keys = 0;
  int64_t changed = 0;
  int64_t removed = 0;
  int64_t counters = 0;
  KeyCounts counts = {};
  bool knows_changes = false;
  bool has_new_sketch = true;
};
static_assert(std::is_trivially_copyable_v<RankKeys>);

std::vector<RankKeys> gather_from_ranks(const RankKeys& own, RankGroup& ranks) {
  std::vector<RankKeys> all;
  for (const std::string& bytes : ranks.all_gather(
           std::string(reinterpret_cast<const char*>(&own), sizeof(own)))) {
    TORCH_INTERNAL_ASSERT(bytes.size() == sizeof(RankKeys));
    std::memcpy(&all.emplace_back(), bytes.data(), sizeof(RankKeys));
  }
  return all;
}

int64_t size_of(const auto& values) {
  return static_cast<int64_t>(values.size());
}

KeysToSave find_keys_to_save(
    const TableState& table,
    bool has_parent,
    bool is_tracking,
    RankGroup& ranks,
    ManifestTable& manifest) {
  KeyTableRows& key_rows = *table.key_rows;
  const KeyIndex& index = key_rows.index();
  KeysToSave part{.sketch = index.sketch()};
  if (is_tracking) {
    part.snapshot.emplace(table);
  }
  RankKeys own{
      .keys = index.size(),
      .counters = size_of(part.sketch),
      .counts = index.counts(),
      .knows_changes = has_parent && is_tracking && key_rows.snapshot()};
  KeySnapshot::Changes changes;
  if (own.knows_changes) {
    changes = key_rows.snapshot()->until(*part.snapshot, index);
    own.changed = size_of(changes.changed.keys);
    own.removed = size_of(changes.removed);
    own.has_new_sketch = changes.has_new_sketch;
  }

  const std::vector<RankKeys> all = gather_from_ranks(own, ranks);
  RankKeys total{.knows_changes = true, .has_new_sketch = false};
  for (const RankKeys& rank : all) {
    total.keys += rank.keys;
    total.changed += rank.changed;
    total.knows_changes = total.knows_changes && rank.knows_changes;
    total.has_new_sketch = total.has_new_sketch || rank.has_new_sketch;
  }
  // If all keys have changed, a list of removed ones would only make the checkpoint larger.
  const bool is_increment = total.knows_changes && total.changed < total.keys;
  ManifestKeys& keys = manifest.keys.emplace();
  keys.partitions = index.partitions().count();
  keys.half_life = half_life_of(index);
  if (!is_increment || total.has_new_sketch) {
    keys.sketch = {.name = "sketch", .dtype = "uint8", .shape = {0}};
  } else {
    part.sketch = {};
  }
  if (is_increment) {
    keys.removed = {.name = "removed_keys", .dtype = "int64", .shape = {0}};
  }
  int64_t saved = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (static_cast<int64_t>(rank) == ranks.rank()) {
      part.first = saved;
      part.first_removed = is_increment ? keys.removed->shape[0] : 0;
      part.first_counter = keys.sketch ? keys.sketch->shape[0] : 0;
    }
    saved += is_increment ? all[rank].changed : all[rank].keys;
    if (keys.sketch) {
      keys.sketch->shape[0] += all[rank].counters;
    }
    if (is_increment) {
      keys.removed->shape[0] += all[rank].removed;
    }
    keys.admitted += all[rank].counts.admitted;
    keys.evicted += all[rank].counts.evicted;
    keys.dropped += all[rank].counts.dropped;
  }
  for (ManifestTensor& tensor : manifest.tensors) {
    tensor.shape[0] = saved;
  }

  if (is_increment) {
    part.list = std::move(changes.changed);
    part.removed = std::move(changes.removed);
  } else {
    part.list =
        list_keys(index, [](const KeyEntry& /*entry*/) { return true; });
  }
  return part;
}

// Refuses keys that are not in the order of their hashes.
void check_order(
    const std::vector<int64_t>& keys,
    const char* what,
    const std::filesystem::path& folder,
    const ManifestTable& table,
    const std::string& where) {
  const auto wrong =
      std::adjacent_find(keys.begin(), keys.end(), [](int64_t a, int64_t b) {
        return hash_of_key(a) >= hash_of_key(b);
      });
  TESSERA_CHECK_VALUE(
      wrong == keys.end(),
      "{} '{}': the {} of table '{}' must be in the order of their hashes, each of them once, but key {} follows key {}. The checkpoint is damaged. Choose another one with LoadOptions::checkpoint, or move this one out of its directory.",
      where,
      folder.string(),
      what,
      shorten(table.name),
      wrong == keys.end() ? 0 : *(wrong + 1),
      wrong == keys.end() ? 0 : *wrong);
}

}  // namespace

std::vector<KeysToSave> find_keys_to_save(
    const EmbeddingState& state,
    bool has_parent,
    bool is_tracking,
    std::vector<ManifestTable>& tables) {
  std::vector<KeysToSave> keys(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    const TableState& table = state.tables[i];
    if (table.key_rows != nullptr) {
      keys[i] = find_keys_to_save(
          table, has_parent, is_tracking, *state.ranks, tables[i]);
    }
  }
  return keys;
}

StoredChanges read_changes(
    const std::filesystem::path& folder,
    const ManifestTable& table,
    const std::string& where) {
  const auto keys =
      read_vector<int64_t>(folder, find_tensor(table, kSavedKeys), where);
  const auto updates =
      read_vector<uint32_t>(folder, find_tensor(table, kKeyUpdates), where);
  const auto frequencies =
      read_vector<float>(folder, find_tensor(table, kKeyFrequencies), where);
  check_order(keys, "keys", folder, table, where);
  StoredChanges changes;
  changes.entries.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    changes.entries.push_back(
        {.key = keys[i],
         .last_update = updates[i],
         .frequency = frequencies[i]});
  }
  if (table.keys->removed) {
    changes.removed = read_vector<int64_t>(folder, *table.keys->removed, where);
    check_order(changes.removed, "removed keys", folder, table, where);
  }
  return changes;
}

// All lists are in the order of the hashes, so they are merged in one walk.
void apply_changes(
    const StoredChanges& changes,
    size_t link,
    const std::filesystem::path& folder,
    const std::string& where,
    StoredKeys& keys) {
  const std::vector<KeyEntry> before = std::move(keys.saved.entries);
  const std::vector<StoredRow> rows = std::move(keys.rows);
  keys.saved.entries.clear();
  keys.rows.clear();
  keys.saved.entries.reserve(before.size() + changes.entries.size());
  keys.rows.reserve(before.size() + changes.entries.size());
  size_t old = 0;
  auto removed = changes.removed.begin();
  const auto keep_until = [&](uint64_t end, bool is_last) {
    for (;
         old < before.size() && (is_last || hash_of_key(before[old].key) < end);
         ++old) {
      if (removed != changes.removed.end() && *removed == before[old].key) {
        ++removed;
        continue;
      }
      keys.saved.entries.push_back(before[old]);
      keys.rows.push_back(rows[old]);
    }
  };
  for (size_t i = 0; i < changes.entries.size(); ++i) {
    const KeyEntry& entry = changes.entries[i];
    keep_until(hash_of_key(entry.key), /*is_last=*/false);
    if (old < before.size() && before[old].key == entry.key) {
      ++old;
    }
    keys.saved.entries.push_back(entry);
    keys.rows.push_back(
        {.link = static_cast<uint32_t>(link),
         .entry = static_cast<uint32_t>(i)});
  }
  keep_until(0, /*is_last=*/true);
  TESSERA_CHECK_VALUE(
      removed == changes.removed.end(),
      "{} '{}': key {} is listed as removed, but has no row in the checkpoint that it builds on, or is listed as changed, too. The checkpoint is damaged. Choose another one with LoadOptions::checkpoint, or move this one out of its directory.",
      where,
      folder.string(),
      removed == changes.removed.end() ? 0 : *removed);
}

}  // namespace tessera
