// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/manifest.h"
#include "serialization/saved_keys.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_snapshot.h"

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// A checkpoint has the keys of a table in the order of their hashes, and their rows and
// scores in the same order. The high bits of the hash choose the partition, so the keys
// of the ranks follow each other, and each rank finds its keys in one range, however many
// ranks have written them.

/// The part of this rank of a key table in a new checkpoint. All lists are in the
/// order of the keys' hashes.
struct KeysToSave {
  KeyList list = {};
  std::vector<int64_t> removed = {};  // empty unless it is an increment
  /// The counters of the owned partitions, in the memory of the index. Empty if they are
  /// those of the parent.
  c10::ArrayRef<uint8_t> sketch = {};
  /// The positions of the first row, the first removed key and the first counter of this
  /// rank among those of all ranks.
  int64_t first = 0;
  int64_t first_removed = 0;
  int64_t first_counter = 0;
  /// The state of the keys now, if the next checkpoint may be an increment.
  std::optional<KeySnapshot> snapshot = {};
};

/// Finds the keys that a checkpoint has to hold, and completes the entries of their
/// tables. If `has_parent` is true and all ranks know what has changed since the parent,
/// the result has the changed keys, and otherwise all keys. `is_tracking` says that the
/// next checkpoint may be an increment. The result is empty for tables with a vocabulary.
/// All ranks must call this.
std::vector<KeysToSave> find_keys_to_save(
    const EmbeddingState& state,
    bool has_parent,
    bool is_tracking,
    std::vector<ManifestTable>& tables);

/// The place of a key's row: an entry of the tensors of a checkpoint in a chain.
struct StoredRow {
  uint32_t link = 0;
  uint32_t entry = 0;
};

/// The keys of a table in a chain of checkpoints, in the order of their hashes.
struct StoredKeys {
  SavedKeys saved = {};
  std::vector<StoredRow> rows = {};  // [saved.entries]
};

/// The keys of one checkpoint in the chain.
struct StoredChanges {
  std::vector<KeyEntry> entries = {};  // new or changed
  std::vector<int64_t> removed = {};
};

/// Reads the files with the keys of a table. They must have been verified.
/// Errors:  c10::ValueError beginning with `where` and naming the folder, unless the keys
///          are in the order of their hashes, each once.
StoredChanges read_changes(
    const std::filesystem::path& folder,
    const ManifestTable& table,
    const std::string& where);

/// Applies the changes of checkpoint `link` to the keys of its parent.
/// Errors:  c10::ValueError beginning with `where` and naming the folder, for removed keys
///          that the parent does not have, or that are also listed as changed.
void apply_changes(
    const StoredChanges& changes,
    size_t link,
    const std::filesystem::path& folder,
    const std::string& where,
    StoredKeys& keys);

}  // namespace tessera
