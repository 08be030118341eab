// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/disk.h"
#include "src/engine/embedding_state.h"

#include <tessera/engine/checkpoint_options.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>

#include <string>

namespace tessera {

// A checkpoint goes to the disk in this order: data files, each synced, then the
// manifest, then the folder, which is renamed when all of it is on the disk.
//
//   checkpoint_directory.h   the user's directory: names, lock, what is removed
//   checkpoint_increment.h   which rows an increment holds
//   checkpoint_tables.h      the tables' files and entries in the manifest
//   checkpoint_files.h       one file with its checksums
//   disk.h                   the system's calls, which tests make fail

/// Writes one more checkpoint into `directory` and removes those that are no
/// longer kept.
/// Errors:  c10::ValueError for options; c10::Error naming path and reason when
///          the disk fails. Complete checkpoints stay, and so does the state.
void save_checkpoint(
    EmbeddingState& state,
    const Nest<FeatureConfig>& features,
    const std::string& directory,
    const CheckpointOptions& options,
    Disk& disk);

}  // namespace tessera
