// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/manifest.h"
#include "serialization/saved_keys.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

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
