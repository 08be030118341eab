// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_keys.h"

#include <tessera/common/shorten.h>

#include "serialization/checkpoint_input.h"
#include "src/common/check.h"

#include <algorithm>
#include <utility>

namespace tessera {

namespace {

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
