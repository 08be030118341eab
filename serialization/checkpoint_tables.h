// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/checkpoint_files.h"
#include "serialization/checkpoint_increment.h"
#include "serialization/checkpoint_keys.h"
#include "serialization/manifest.h"
#include "src/engine/embedding_state.h"

#include <cstdint>
#include <vector>

namespace tessera {

// This part writes the data files of tables and makes their entries in the manifest.

/// Makes the entries of the tables, without files.
std::vector<ManifestTable> describe_tables(const EmbeddingState& state);

/// Writes the rows of this rank, several files at a time, and adds the files to `tables`.
/// A file has at most `file_bytes`, but at least one row. The entries of the files have
/// this rank's row numbers until gather_tables(). `increments` is empty for a full
/// checkpoint. `keys` is the result of find_keys_to_save().
void write_tables(
    const EmbeddingState& state,
    const std::vector<TableIncrement>& increments,
    const std::vector<KeysToSave>& keys,
    int64_t file_bytes,
    const CheckpointFiles& files,
    std::vector<ManifestTable>& tables);

/// Writes the accumulated gradients of this rank's rows and adds the files to `tables`.
void write_accumulated(
    const EmbeddingState& state,
    const CheckpointFiles& files,
    std::vector<ManifestTable>& tables);

/// Replaces this rank's row numbers by those of the whole tables. On rank 0, also adds
/// the files of the other ranks. If this fails on one rank, every rank raises an error.
void gather_tables(
    const EmbeddingState& state,
    const std::vector<TableIncrement>& increments,
    const std::vector<KeysToSave>& keys,
    std::vector<ManifestTable>& tables);

}  // namespace tessera
