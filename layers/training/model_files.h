// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>
#include <tessera/engine/strategy.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "layers/training/ranks.h"

#include <functional>
#include <memory>
#include <string>

namespace tessera::training {

// A model in a directory. With TPUEmbedding layers it is the checkpoint directory
// of the first of them (sharded ones come before engines, these before others),
// whose `extra` has the rest:
//
//   dense         parameters and buffers outside of these layers, by number
//   dense_names   a JSON list
//   layers        a JSON list: the checkpoints of the other layers, which stand in
//                 layer_1/, layer_2/, ...
//
// and what the caller adds. Without such a layer it is one file, model.pt, with
// the same entries.

/// Those of the model's tables, or else of `strategy`.
Ranks ranks_of(
    torch::nn::Module& model,
    const Strategy& strategy = Strategy::engine());

/// Whatever a process that dies meanwhile leaves behind, the checkpoint before
/// stays whole. All ranks call it: rank 0 alone saves what is not sharded and runs
/// `extra`.
void save_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory,
    CheckpointOptions options);

/// The newest. False when there is none. `extra` reads what the caller has added,
/// when everything has been compared and nothing is changed yet: what it throws
/// leaves the model as it is. All ranks call it, and all run `extra`.
/// Errors:  c10::ValueError when it is another model's; c10::Error for files.
bool load_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory,
    const std::function<void(torch::serialize::InputArchive&)>& extra = {});

/// Only what the caller of save_model() has added; on any rank alone.
bool peek_model(
    torch::nn::Module& model,
    const std::string& directory,
    const std::function<void(torch::serialize::InputArchive&)>& extra);

/// Whether load_model() would find one. All ranks call it.
bool has_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory);

/// Errors:  c10::ValueError beginning with `where` for a path that is empty, too long
///          or has a zero byte.
void require_directory(const std::string& directory, const std::string& where);

/// Makes the directory.
/// Errors:  as require_directory(); c10::Error beginning with `where` when it can't be written to.
void check_model_directory(
    const std::string& directory,
    const std::string& where);

/// Keeps other processes from training with the directory, which is there, as long
/// as the result lives. All ranks call it; rank 0 has the lock.
/// Errors:  c10::Error naming the path.
std::shared_ptr<void> lock_for_training(
    const Ranks& ranks,
    const std::string& directory);

/// As torch::save and torch::load.
std::string model_to_bytes(const torch::nn::Module& model);
void model_from_bytes(torch::nn::Module& model, const std::string& bytes);

}  // namespace tessera::training
