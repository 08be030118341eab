// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inputs of a layer that joins them along the last axis. An input may have one row for
// the whole batch, such as the vector of a user beside those of many candidates.

#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Returns the name of an input for messages: "Class 'path'", or "Class" for a single
/// input.
std::string input_name(const std::string& path, const std::string& class_name);

/// Sets `batch` to the common batch size of `batch` and `other`. A size of 1 fits any other.
/// The result is unknown if one size is unknown and the other is unknown or 1.
/// Errors:  c10::ValueError that names the input, for sizes that do not fit.
void merge_batch(
    std::optional<int64_t>& batch,
    const std::optional<int64_t>& other,
    const std::string& path,
    const std::string& class_name);

/// The shape of the inputs joined along the last axis.
/// Errors:  c10::ValueError naming the path, for shapes with fewer than two dimensions,
///          and for shapes that differ in a size other than the last one, except for a
///          batch size of 1; c10::ValueError for an empty nest. Messages begin with
///          `class_name`.
PartialShape joined_shape(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name);

/// The sum of the inputs' last sizes.
/// Errors:  c10::ValueError naming the path of an input whose last size is unknown.
int64_t joined_width(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name);

/// Checks the inputs with `shape_of`, such as joined_shape(), and returns them. If
/// gradients are enabled, a tensor of inference mode is copied, so that it can be saved for
/// the backward pass.
/// Errors:  those of `shape_of`; c10::ValueError for an undefined tensor; c10::TypeError
///          for tensors that are not dense or not of a floating-point type, and for
///          different dtypes without autocast.
std::vector<at::Tensor> checked_inputs(
    const Nest<at::Tensor>& inputs,
    const std::string& class_name,
    PartialShape (*shape_of)(const Nest<PartialShape>&, const std::string&));

/// Checks that the inputs have as many columns as a layer was built for.
/// Errors:  c10::ValueError, which begins with `class_name`.
void check_columns(
    const std::vector<at::Tensor>& inputs,
    int64_t columns,
    const std::string& class_name);
/// The same for the weight [units, columns] of a layer.
/// Errors:  also c10::TypeError for another dtype than the weight's, without autocast.
void check_fits(
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& weight,
    const std::string& class_name);

/// Returns whether the batch sizes of the tensors differ.
bool differ_in_batch(const std::vector<at::Tensor>& tensors);

/// Gives each tensor [batch, ...] the batch size of the largest. A trace records no sizes.
std::vector<at::Tensor> with_equal_batches(std::vector<at::Tensor> tensors);

/// Joins inputs along the last axis.
at::Tensor joined(const std::vector<at::Tensor>& inputs);

/// joined(inputs) weight^T + bias.
struct JoinedProduct {
  std::vector<at::Tensor> inputs = {};  // [batch, ..., n_i] each
  at::Tensor weight = {};  // [out, sum of n_i]
  at::Tensor bias = {};  // [out], [1, out] or undefined
};

/// Computes the part of inputs [1, n_i] once, and makes it a part of the bias. Returns the
/// rest of the product, whose inputs have the same batch size.
JoinedProduct without_single_rows(const JoinedProduct& product);

/// Shapes:  the result [batch, ..., out].
at::Tensor compute(const JoinedProduct& product);

// The functions below take features of the same dim, which interact with each other.

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
/// Different dtypes under autocast are promoted.
/// Errors:  those of shape_of_features() and checked_inputs().
std::vector<at::Tensor> checked_features(
    const Nest<at::Tensor>& features,
    const std::string& class_name);

/// Joins leaves [batch, dim] and [batch, n, dim] to [batch, features, dim].
at::Tensor joined_features(at::TensorList leaves);

}  // namespace tessera
