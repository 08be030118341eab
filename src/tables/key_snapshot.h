// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/key_index.h"
#include "src/tables/reserved_memory.h"

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct TableState;

/// Keys of an index, in the order of their hashes. Keys of a lower partition come first.
struct KeyList {
  ReservedArray<uint32_t> rows = {};
  ReservedArray<int64_t> keys = {};
  ReservedArray<uint32_t> updates = {};  // the last update of each key
  ReservedArray<float> frequencies = {};
};

/// Lists the keys for which `takes` returns true. It calls `takes` twice for each key, on
/// several threads.
/// Errors:  c10::Error if the system can't reserve the memory.
KeyList list_keys(
    const KeyIndex& index,
    c10::function_ref<bool(const KeyEntry&)> takes);

/// Finds the keys of a key table that have changed between two checkpoints, no matter
/// which code has changed them. For each row, it keeps the key and one XXH3 checksum, over
/// the key's last update, frequency, weights and slots. It also keeps one checksum of the
/// sketch. Keys may move to other rows, but nearly all keep theirs. So rows are compared in
/// their own order, which is faster than in the order of keys.
class KeySnapshot {
 public:
  /// Reads all rows that have keys, on all threads.
  explicit KeySnapshot(const TableState& table);

  struct Changes {
    KeyList changed = {};  // changed and new keys
    std::vector<int64_t> removed = {};  // in the order of their hashes
    bool has_new_sketch = true;
  };
  /// Returns what has changed since this snapshot. `now` is a snapshot of the present state,
  /// whose index is `index`.
  Changes until(const KeySnapshot& now, const KeyIndex& index) const;

 private:
  struct Entry {
    int64_t key;
    uint64_t checksum;  // 0 means that the row has no key

    bool operator==(const Entry&) const = default;
  };

  // The keys of each partition that have another row or no row now, in the order of their
  // hashes.
  std::vector<std::vector<Entry>> lost_entries(const KeySnapshot& now) const;
  // The keys of `lost` that have no row, in the order of their hashes.
  static std::vector<int64_t> removed_keys(
      const std::vector<std::vector<Entry>>& lost,
      const KeyIndex& index);
  static uint64_t hash_of_entry(const Entry& entry);

  struct Rows {
    int64_t first;
    int64_t count;
  };

  ReservedArray<Entry> entries_;  // [KeyIndex::rows()]
  std::string sketch_checksum_;
  // [owned partitions], see KeyIndex::visit_used_rows().
  std::vector<Rows> used_;
};

}  // namespace tessera
