// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/trace/exported_layer.h"

#include <tessera/export/exported_model.h>
#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::exporting {

/// Looks up one feature of a layer in the written file. `weights` may be undefined.
using FileLookup = std::function<at::Tensor(
    const std::string& path,
    const Feature& feature,
    const at::Tensor& weights)>;

/// Compares the file with the layer on made-up inputs of all kinds and several batch
/// sizes. Both must give the same values, or both must refuse the input.
/// Errors:  c10::Error beginning with the layer's `where`, if they differ.
void check_embedding(const ExportedLayer& layer, const FileLookup& file_lookup);

/// Returns true if a feature of the model has an output_shape. Then the model may accept
/// only one batch size.
bool has_output_shape(const torch::nn::Module& model);

/// The outputs for a batch, or the reason why there are none.
struct Result {
  std::vector<at::Tensor> outputs = {};
  std::string refusal = {};
  bool is_refused = false;
};

Result try_run(c10::function_ref<std::vector<at::Tensor>()> run);

/// How the file's result differs from the model's. Empty if it does not, except for the
/// rounding of a precision.
std::string difference(
    const Result& actual,
    const Result& expected,
    Precision precision);

/// Computes the outputs of a model, or of its file, for a batch from to_parts().
using Outputs =
    std::function<std::vector<at::Tensor>(const ExportExample& batch)>;

/// Compares the file with the model on the example and at other batch sizes.
/// Errors:  c10::ValueError beginning with `where`, if they differ, and for a model that
///          accepts only the example's batch size.
void check_model(
    const torch::nn::Module& model,
    const ExportExample& example,
    const Outputs& model_outputs,
    const Outputs& file_outputs,
    Precision precision,
    const std::string& where);

}  // namespace tessera::exporting
