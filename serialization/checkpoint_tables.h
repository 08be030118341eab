// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/checkpoint_files.h"
#include "serialization/checkpoint_increment.h"
#include "serialization/manifest.h"
#include "src/engine/embedding_state.h"

#include <cstdint>
#include <vector>

namespace tessera {

// The tables of a checkpoint: their entries in the manifest and their data files.

/// The entries of the tables, without files.
std::vector<ManifestTable> describe_tables(const EmbeddingState& state);

/// Writes the rows of this rank, in files of at most `file_bytes`, several at a time, and
/// enters the files. Their entries have this rank's numbers until gather_tables().
/// `increments` is empty for a full checkpoint.
void write_tables(
    const EmbeddingState& state,
    const std::vector<TableIncrement>& increments,
    int64_t file_bytes,
    const CheckpointFiles& files,
    std::vector<ManifestTable>& tables);

/// Writes the gradients that this rank has collected for its rows.
void write_accumulated(
    const EmbeddingState& state,
    const CheckpointFiles& files,
    std::vector<ManifestTable>& tables);

/// Numbers the entries of the files as the whole tables do and adds those of the other
/// ranks, on rank 0.
void gather_tables(
    const EmbeddingState& state,
    const std::vector<TableIncrement>& increments,
    std::vector<ManifestTable>& tables);

}  // namespace tessera
