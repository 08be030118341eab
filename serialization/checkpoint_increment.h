// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/checkpoint_directory.h"
#include "serialization/checkpoint_keys.h"
#include "serialization/manifest.h"
#include "src/engine/embedding_state.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// An increment is a checkpoint that holds only the rows that were touched since another
// checkpoint. It builds on that checkpoint, which is called its parent.

/// The position of the next checkpoint in a chain of increments.
struct ChainPosition {
  /// Unset for a full checkpoint.
  std::optional<ManifestParent> parent = {};
  /// The number of increments since the last full checkpoint.
  int64_t increments = 0;
};

/// Chooses what the next checkpoint builds on. This is the newest checkpoint of the
/// directory, if touched rows count from it and `full_every` allows one more increment.
ChainPosition choose_parent(
    const EmbeddingState& state,
    const CheckpointDirectory& directory,
    int64_t full_every);

/// Identifies the checkpoint that TouchedRows count from. The checksum of the manifest
/// tells it from a checkpoint of the same name that another layer has written.
std::string checkpoint_id(
    const std::filesystem::path& checkpoint,
    const std::string& xxh3);

/// Whether this rank writes its rows of `table`. If several ranks have the same rows,
/// only the first of them writes these.
bool writes_rows(const TableState& table);

/// The touched rows of one table on this rank.
struct TableIncrement {
  std::vector<uint32_t> rows = {};  // local rows, ascending
  /// The position of the first of these rows among the touched rows of all ranks.
  int64_t first = 0;
};

/// Finds the touched rows of each table and sets `touched` of its entry to their number
/// on all ranks. `touched` stays unset if all rows must be saved. This is the case if all
/// were touched, if a rank does not know which were, or if the rows of the ranks
/// interleave. Key tables are left to find_keys_to_save().
std::vector<TableIncrement> find_touched(
    const EmbeddingState& state,
    std::vector<ManifestTable>& tables);

/// Returns the content of each table's file of touched rows, from all ranks. It is empty
/// for a table that has no such file. Only rank 0 can use the result.
std::vector<std::string> gather_touched(
    const EmbeddingState& state,
    const std::vector<ManifestTable>& tables,
    const std::vector<TableIncrement>& increments);

/// From now on, touched rows count from the checkpoint of this id. `increments` is what
/// this checkpoint holds, or empty for a full one. The snapshots of `keys` are moved into
/// `state`.
void track_changes_from(
    const std::string& id,
    const std::vector<TableIncrement>& increments,
    std::vector<KeysToSave>& keys,
    EmbeddingState& state);

}  // namespace tessera
