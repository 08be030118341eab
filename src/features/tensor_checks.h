// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

// Checks of the tensors of a feature. `part` names the tensor in messages: "values".

/// Errors:  c10::TypeError unless it is a dense tensor on the CPU.
void check_tensor(
    const FeatureState& feature,
    const at::Tensor& tensor,
    const char* part);

/// Errors:  c10::TypeError unless check_tensor() passes and it is int32 or int64.
void check_integers(
    const FeatureState& feature,
    const at::Tensor& tensor,
    const char* part);

/// Errors:  c10::ValueError unless it has this rank.
void check_rank(
    const FeatureState& feature,
    const at::Tensor& tensor,
    int64_t rank,
    const char* part);

/// A contiguous int64 view or copy of an integer tensor.
at::Tensor as_int64(const at::Tensor& tensor);

}  // namespace tessera
