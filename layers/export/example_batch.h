// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/features/nest.h>
#include <tessera/layers/export_torchscript.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::exporting {

/// The tensors by which an exported forward() takes a feature. Dense: [ids], ragged:
/// [values, row_splits], sparse: [indices, values, dense_shape].
std::vector<at::Tensor> parts_of(const Feature& feature);

/// The values of a feature, or of weights: the tensor of a dense one.
at::Tensor values_of(const Feature& feature);

/// The feature of these tensors.
Feature feature_of(at::TensorList parts);

/// The example in the forms that a file takes: sparse tensors by their parts, weights
/// flat.
/// Errors:  c10::ValueError beginning with `where`, for undefined tensors.
ExportExample in_parts(const ExportExample& example, const std::string& where);

/// The batch size of all features: the rows of each are a multiple of it.
/// Errors:  c10::ValueError beginning with `where`, for an empty batch, and where the
///          features disagree.
int64_t batch_size_of(const Features& features, const std::string& where);

/// A batch of `size` examples: the rows of `example`, whose batch size is `batch`, over
/// and over.
ExportExample with_batch_size(
    const ExportExample& example,
    int64_t batch,
    int64_t size,
    const std::string& where);

/// All tensors of a batch in parts: those of the features, then weights and inputs.
std::vector<at::Tensor> flatten(const ExportExample& batch);

/// The other way: a batch of the example's structure.
ExportExample unflatten(
    const ExportExample& example,
    const std::vector<at::Tensor>& tensors);

}  // namespace tessera::exporting
