// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/disk.h"
#include "src/engine/embedding_state.h"

#include <tessera/engine/checkpoint_options.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// A checkpoint is written in this order: the data files, each of which is synced, then
// the manifest. When all of it is on the disk, its folder is renamed. An increment is a
// checkpoint that holds only the rows that have changed since its parent checkpoint.
//
//   checkpoint_directory.h   the user's directory: names, lock, removal
//   disk.h                   the system calls, which tests can make fail

/// Errors:  c10::ValueError for options out of range; `where` begins the message.
void validate(const CheckpointOptions& options, const std::string& where);

/// Writes a new checkpoint into `directory` and removes checkpoints that are no longer
/// kept. Errors begin with `disk.where()`.
/// Errors:  c10::ValueError for options; c10::Error naming path and reason if the disk
///          fails. Complete checkpoints and the state are unchanged then.
void save_checkpoint(
    EmbeddingState& state,
    const Nest<FeatureConfig>& features,
    const std::string& directory,
    const CheckpointOptions& options,
    Disk& disk);

/// Removes complete checkpoints of the directory. `names` has the newest first, because
/// an increment must not stay without the checkpoint that it builds on.
void remove_checkpoints(
    const std::filesystem::path& directory,
    const std::vector<std::string>& names,
    Disk& disk);

}  // namespace tessera
