// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/checkpoint_directory.h"
#include "serialization/manifest.h"
#include "src/engine/embedding_state.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// An increment is a checkpoint that holds only the rows which were touched since the
// checkpoint that it builds on, its parent.

/// Where the next checkpoint stands in a chain of increments.
struct ChainPosition {
  /// Unset for a full checkpoint.
  std::optional<ManifestParent> parent = {};
  /// Increments since the full one.
  int64_t increments = 0;
};

/// The next checkpoint builds on the newest one of the directory, if the touched rows
/// count from that one and `full_every` allows one more increment.
ChainPosition choose_parent(
    const EmbeddingState& state,
    const CheckpointDirectory& directory,
    int64_t full_every);

/// What TouchedRows count from. The checksum of the manifest differs where the same
/// number was written by another layer.
std::string checkpoint_id(
    const std::filesystem::path& checkpoint,
    const std::string& xxh3);

/// Whether this rank writes its rows of `table`: of rows that several ranks have, the
/// first one's are written.
bool writes_rows(const TableState& table);

/// The touched rows of one table that this rank has.
struct TableIncrement {
  std::vector<uint32_t> rows = {};  // local rows, ascending
  /// The position of the first of them among those of all ranks.
  int64_t first = 0;
};

/// Finds the touched rows of each table and sets `touched` of its entry to their number
/// on all ranks. `touched` stays unset where all rows must be saved: because all were
/// touched, or one rank does not know, or the ranks' rows interleave.
std::vector<TableIncrement> find_touched(
    const EmbeddingState& state,
    std::vector<ManifestTable>& tables);

/// On rank 0, the content of each table's file of touched rows, from all ranks. It is
/// empty for a table that has no such file.
std::vector<std::string> gather_touched(
    const EmbeddingState& state,
    const std::vector<ManifestTable>& tables,
    const std::vector<TableIncrement>& increments);

/// From now on, touched rows count from the checkpoint of this id. `increments` are what
/// it holds, or empty for a full checkpoint.
void count_touched_from(
    const std::string& id,
    const std::vector<TableIncrement>& increments,
    EmbeddingState& state);

}  // namespace tessera
