// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

// These functions check a tensor of a feature. `part` is the tensor's name in messages,
// such as "values".

/// Errors:  c10::TypeError unless `tensor` is a dense tensor on the CPU.
void check_tensor(
    const FeatureState& feature,
    const at::Tensor& tensor,
    const char* part);

/// Errors:  c10::TypeError unless check_tensor() passes and `tensor` is int32 or int64.
void check_integers(
    const FeatureState& feature,
    const at::Tensor& tensor,
    const char* part);

/// Errors:  c10::ValueError unless `tensor` has the rank `rank`.
void check_rank(
    const FeatureState& feature,
    const at::Tensor& tensor,
    int64_t rank,
    const char* part);

/// Returns the values as a contiguous tensor, which may share their memory.
at::Tensor as_contiguous(const at::Tensor& tensor);

/// Returns an integer tensor as a contiguous int64 tensor, which may share its memory.
at::Tensor as_int64(const at::Tensor& tensor);

}  // namespace tessera
