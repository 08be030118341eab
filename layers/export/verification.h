// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/export/exported_layer.h"

#include <tessera/features/feature.h>
#include <tessera/layers/export_torchscript.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::exporting {

/// What the written file gives for one feature of a layer; `weights` may be undefined.
using FileLookup = std::function<at::Tensor(
    const std::string& path,
    const Feature& feature,
    const at::Tensor& weights)>;

/// Compares the file with the layer on made-up inputs of all kinds and several batch
/// sizes: both give the same, or both refuse.
/// Errors:  c10::Error beginning with the layer's `where`, where they differ.
void check_embedding(const ExportedLayer& layer, const FileLookup& in_file);

/// What a model, or its file, gives for a batch in parts.
using Outputs =
    std::function<std::vector<at::Tensor>(const ExportExample& batch)>;

/// Compares the file with the model on the example at several batch sizes.
/// Errors:  c10::ValueError beginning with `where`, where they differ, and for a model
///          that takes the example's batch size only.
void check_model(
    const torch::nn::Module& model,
    const ExportExample& example,
    const Outputs& of_model,
    const Outputs& of_file,
    const std::string& where);

}  // namespace tessera::exporting
