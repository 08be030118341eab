// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks for the dense inputs of a layer. You can call them in your own layers.

#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera {

/// Returns the only shape of `input_shapes`, [batch, ..., dim].
/// Errors:  c10::ValueError unless there is one shape, of rank 2 or more and with a dim
///          that is >= 1 or unknown. Messages begin with `class_name`.
PartialShape check_rows(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name);

/// The last size of a shape, from which parameters are made.
/// Errors:  c10::ValueError if it is unknown.
int64_t known_dim(const PartialShape& shape, const std::string& class_name);

/// Errors:  c10::ValueError for an undefined tensor; c10::TypeError unless the tensor is
///          dense and of a floating dtype.
void check_floating(
    const at::Tensor& input,
    const std::string& name,
    const std::string& class_name);

/// Returns whether autocast chooses the dtype of LibTorch's operators on this tensor. Autocast
/// leaves doubles as they are.
bool has_autocast(const at::Tensor& tensor);

/// Returns whether LibTorch's operators take both tensors: they have the same dtype, or
/// autocast chooses it.
bool have_same_dtype(const at::Tensor& a, const at::Tensor& b);

/// Errors:  c10::ValueError unless the last size of `input` is the dim of
///          `kernel` [dim, ...]; c10::TypeError for another dtype than the kernel's, unless
///          autocast is on.
void check_fits(
    const at::Tensor& input,
    const at::Tensor& kernel,
    const std::string& class_name);

/// Returns true if no value of the tensor is NaN or infinite. The tensor may be sparse.
bool all_finite(const at::Tensor& tensor);

}  // namespace tessera
