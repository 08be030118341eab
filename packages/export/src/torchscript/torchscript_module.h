// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/trace/exported_layer.h"
#include "src/common/atomic_file.h"

#include <tessera/export/exported_model.h>

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace tessera::exporting {

/// An empty TorchScript module.
torch::jit::Module make_module(const std::string& type_name);

/// Adds the methods in `source`, which is TorchScript, to a module.
void define(torch::jit::Module& module, const std::string& source);

/// A module with the layer's tables as buffers and its lookups as methods.
torch::jit::Module script_layer(const ExportedLayer& layer);

/// Detaches all tensors of a module, so that the file does not hold gradients.
void detach_tensors(const torch::jit::Module& root);

/// Writes the module to `file` and loads it back, without committing the file.
torch::jit::Module save_and_load(
    const torch::jit::Module& module,
    AtomicFile& file);

/// The activations of one feature, computed by the loaded file of a layer.
at::Tensor run_embedding(
    torch::jit::Module& loaded,
    const std::string& path,
    const Feature& feature,
    const at::Tensor& weights);

/// The outputs of the loaded file of a model.
std::vector<at::Tensor> run_model(
    torch::jit::Module& loaded,
    const detail::ExportedModel& model,
    const ExportExample& batch);

}  // namespace tessera::exporting
