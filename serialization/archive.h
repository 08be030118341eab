// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"

#include <tessera/engine/checkpoint_options.h>
#include <torch/serialize/archive.h>

#include <string>

namespace tessera {

// A layer in a torch archive has the same keys for every strategy:
//
//   format_version   1
//   config           the feature configs as JSON
//   iterations       the number of passes. gradient_accumulation_steps passes make an update
//   seed             the seed of random rounding, as int64
//   table_{i}/name, optimizer, parameters, and slot_{name} for each slot. In the
//             middle of a gradient accumulation also accumulation_steps,
//             accumulated_rows and accumulated_sums. A key table also has
//             keys, key_updates, key_frequencies, key_half_life, key_sketch and key_counts,
//             and accumulated_keys, accumulated_counts and accumulated_dropped
//   tessera_checksums   checksums of all entries: see src/common/checked_archive.h
//
// The keys of tables are numbers, not names: LibTorch can save a tensor under a name such
// as `class`, but can't load it.

/// Writes a layer into an archive.
/// Errors:  c10::Error from LibTorch if the stream fails.
void save_state(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& features,
    torch::serialize::OutputArchive& output);

/// Returns the feature configs as the JSON text that saved_features() reads.
std::string config_text(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& features);

/// Copies tables, slots, step counter, seed and accumulated gradients into `state`. A
/// table without an optimizer, or on the host, takes its rows and skips slots that it
/// does not have.
/// Errors:  c10::ValueError beginning with `where`, listing damaged entries or all
///          differences. Then nothing is changed.
void load_state(
    EmbeddingState& state,
    torch::serialize::InputArchive& archive,
    const LoadOptions& options,
    const std::string& where);

}  // namespace tessera
