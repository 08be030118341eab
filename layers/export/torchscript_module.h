// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/export/exported_layer.h"
#include "src/common/atomic_file.h"

#include <tessera/layers/export_torchscript.h>

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace tessera::exporting {

/// An empty module of TorchScript.
torch::jit::Module make_module(const std::string& type_name);

/// Adds methods in TorchScript to a module.
void define(torch::jit::Module& module, const std::string& source);

/// The layer's tables as buffers, and its lookups as a script.
torch::jit::Module script_layer(const ExportedLayer& layer);

/// Neither gradients nor what LibTorch knows of them belong in a file.
void detach_tensors(const torch::jit::Module& root);

/// Writes the file, and loads what programs will load once it is committed.
torch::jit::Module save_and_load(
    const torch::jit::Module& module,
    AtomicFile& file);

/// What the loaded file of a layer gives for one feature.
at::Tensor run_embedding(
    torch::jit::Module& loaded,
    const std::string& path,
    const Feature& feature,
    const at::Tensor& weights);

/// What the loaded file of a model gives.
std::vector<at::Tensor> run_model(
    torch::jit::Module& loaded,
    const detail::ExportedModel& model,
    const ExportExample& batch);

}  // namespace tessera::exporting
