// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/exported_model.h>
#include <tessera/features/feature.h>
#include <tessera/features/nest.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::exporting {

/// The tensors that an exported forward() takes for a feature. Dense: [ids], ragged:
/// [values, row_splits], sparse: [indices, values, dense_shape].
std::vector<at::Tensor> parts_of(const Feature& feature);

/// The values of a feature or of weights. For a dense feature, that is its tensor.
at::Tensor values_of(const Feature& feature);

/// The feature with these tensors, in the order of parts_of().
Feature feature_of(at::TensorList parts);

/// Converts the example to the forms that a file takes: sparse tensors become sparse
/// features, and weights become flat.
/// Errors:  c10::ValueError beginning with `where`, for undefined tensors.
ExportExample to_parts(const ExportExample& example, const std::string& where);

/// The common batch size of all features. Each feature's rows are a multiple of it.
/// Errors:  c10::ValueError beginning with `where`, for an empty batch, and if features
///          disagree.
int64_t batch_size_of(const Features& features, const std::string& where);

/// The number of rows of a feature. `path` is for errors.
int64_t rows_of(
    const std::string& path,
    const Feature& feature,
    const std::string& where);

/// All tensors of a batch: parts_of() each feature, then the weights and the inputs.
std::vector<at::Tensor> flatten(const ExportExample& batch);

/// The reverse of flatten(): a batch with the structure of `example`.
ExportExample unflatten(
    const ExportExample& example,
    const std::vector<at::Tensor>& tensors);

}  // namespace tessera::exporting
