// SPDX-License-Identifier: Apache-2.0
#pragma once

// Features of the same dim, which interact with each other.

#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera {

/// Returns [batch, features, dim] for leaves [batch, dim] and [batch, n, dim]. The batch
/// size and dim are unknown if no leaf knows them. The number of features is unknown if a
/// leaf does not know its n. A leaf may have one row for the whole batch.
/// Errors:  c10::ValueError naming the path, for another rank, and for different batch
///          sizes or dims; c10::ValueError for an empty nest and if there are no
///          features. Messages begin with `class_name`.
PartialShape shape_of_features(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name);

/// Checks the leaves with shape_of_features() and returns them. If gradients are enabled,
/// a tensor of inference mode is copied, so that it can be saved for the backward pass.
/// Errors:  those of shape_of_features(); c10::ValueError for an undefined tensor;
///          c10::TypeError for different dtypes, and for tensors that are not dense or not
///          of a floating-point type.
std::vector<at::Tensor> checked_features(
    const Nest<at::Tensor>& features,
    const std::string& class_name);

/// Joins leaves [batch, dim] and [batch, n, dim] to [batch, features, dim].
at::Tensor joined_features(at::TensorList leaves);

}  // namespace tessera
