// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/disk.h"
#include "src/engine/embedding_state.h"

#include <tessera/engine/checkpoint_options.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>

#include <string>

namespace tessera {

// A checkpoint is a folder `checkpoint_000042` in the user's directory. It is
// written under a hidden name: data files, each synced, then the manifest, then
// the folder, and renamed when all of it is on the disk.

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
