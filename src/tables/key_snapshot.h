// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/key_index.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

struct TableState;

/// All keys of an index, in the order of their hashes. Keys of a lower partition come
/// first.
std::vector<KeyEntry> entries_by_hash(const KeyIndex& index);

/// Finds the keys of a key table that have changed between two checkpoints, no matter
/// which code has changed them. It keeps each key and one XXH3 checksum, over its last
/// update, frequency, weights and slots. It does not matter which row a key has.
class KeySnapshot {
 public:
  /// Reads all rows that have keys, on all threads. `entries`: those of the table, in the
  /// order of their hashes.
  KeySnapshot(const TableState& table, const std::vector<KeyEntry>& entries);

  struct Changes {
    std::vector<size_t> changed = {};  // indices of the later entries
    std::vector<int64_t> removed = {};  // in the order of their hashes
  };
  /// What has changed from this state of the table to a later one.
  Changes until(const KeySnapshot& later) const;

 private:
  struct Entry {
    int64_t key;
    uint64_t checksum;
  };
  std::vector<Entry> entries_;  // in the order of the hashes
};

}  // namespace tessera
