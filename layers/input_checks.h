// SPDX-License-Identifier: Apache-2.0
#pragma once

// What layers with one dense input ask of it.

#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera {

/// [batch, ..., dim]; the whole message begins "[Cross] ".
/// Errors:  c10::ValueError unless it is one shape of rank 2 or more, with
///          dim >= 1 where it is known.
const PartialShape& require_rows(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name);

/// The last size, which parameters need.
/// Errors:  c10::ValueError when it is unknown.
int64_t known_dim(const PartialShape& shape, const std::string& class_name);

/// Errors:  c10::ValueError for an undefined tensor, c10::TypeError for one that
///          is not a dense one of floating point.
void require_floating(
    const at::Tensor& input,
    const std::string& name,
    const std::string& class_name);

/// Errors:  c10::ValueError for another last size than `kernel` [dim, ...] has
///          rows, c10::TypeError for another dtype.
void require_fit(
    const at::Tensor& input,
    const at::Tensor& kernel,
    const std::string& class_name);

}  // namespace tessera
