// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// The tensor of a feature's ids, or the values of its weights.
const at::Tensor& values_of(const Feature& feature);

// These functions check a tensor of a feature. `part` is the tensor's name in messages,
// such as "values".

/// Errors:  c10::TypeError unless `tensor` is a dense tensor on the CPU.
void check_tensor(
    const FeatureState& feature,
    const at::Tensor& tensor,
    const char* part);

/// Errors:  c10::TypeError unless check_tensor() passes and `tensor` is int32 or int64;
///          c10::ValueError unless it has the rank `rank`, if this is given.
void check_integers(
    const FeatureState& feature,
    const at::Tensor& tensor,
    const char* part,
    std::optional<int64_t> rank = {});

/// Returns the values as a contiguous tensor, which may share their memory.
at::Tensor as_contiguous(const at::Tensor& tensor);

/// Returns an integer tensor as a contiguous int64 tensor, which may share its memory.
at::Tensor as_int64(const at::Tensor& tensor);

}  // namespace tessera
