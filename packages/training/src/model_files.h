// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>
#include <tessera/engine/strategy.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "packages/training/src/ranks.h"

#include <functional>
#include <memory>
#include <string>

namespace tessera::training {

// Saves and loads models in directories. If the model has TPUEmbedding layers or
// EmbeddingEngineModules, the directory is the checkpoint directory of the first of them.
// (Sharded layers come first, then those with Strategy::fused(), then others.) The `extra`
// entries of that checkpoint have the rest of the model:
//
//   dense         parameters and buffers outside of these layers, by number
//   dense_names   their names, a JSON list
//   layers        a JSON list of the checkpoints of the other layers, which are in
//                 layer_1/, layer_2/, ...
//   layer_shapes  a JSON object with the shapes for which layers without tables were
//                 built, by their paths
//
// and the entries that the caller adds. A model without such layers is one file,
// model.pt, with the same entries and a checksum at its end.

// If a function has a parameter `where`, its errors begin with that text: the function or
// class that the user called, such as "[load_weights]" or "[Checkpoint]".

/// Saves the model. If a process dies meanwhile, the previous checkpoint stays complete.
/// All ranks call it. Rank 0 alone saves everything that is not sharded, and runs
/// `extra`.
void save_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory,
    CheckpointOptions options,
    const std::string& where);

/// Loads the newest checkpoint. Returns false if there is none. `extra` reads the entries
/// that the caller of save_model() added. It runs after all checks and before anything is
/// changed, so the model stays unchanged if it throws. All ranks call it, and all run
/// `extra`.
/// Errors:  c10::ValueError for the checkpoint of another model; c10::Error for files.
bool load_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory,
    const std::string& where,
    const std::function<void(torch::serialize::InputArchive&)>& extra = {});

/// Reads only the entries that the caller of save_model() added. Returns false if there
/// is no checkpoint. One rank may call it alone.
bool peek_model(
    torch::nn::Module& model,
    const std::string& directory,
    const std::string& where,
    const std::function<void(torch::serialize::InputArchive&)>& extra);

/// Whether load_model() would find a checkpoint. All ranks call it.
bool has_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory,
    const std::string& where);

/// Checks that the text can be the path of a directory.
/// Errors:  c10::ValueError for a path that is empty, too long or has a zero byte.
void check_directory(const std::string& directory, const std::string& where);

/// Creates the directory.
/// Errors:  as check_directory(); c10::Error if it can't be made or written to.
void check_model_directory(
    const std::string& directory,
    const std::string& where);

/// Locks an existing directory against other processes that train with it, as long as the
/// result lives. All ranks call it; rank 0 has the lock.
/// Errors:  c10::Error naming the path.
std::shared_ptr<void> lock_for_training(
    const Ranks& ranks,
    const std::string& directory);

/// Saves to memory, and loads from it, like torch::save and torch::load.
std::string model_to_bytes(const torch::nn::Module& model);
void model_from_bytes(torch::nn::Module& model, const std::string& bytes);

}  // namespace tessera::training
