// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/publisher/model_parts.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "packages/training/src/model_files.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace tessera::serving {

/// The parameters and buffers outside of the tables.
using DenseWeights = std::vector<training::NamedTensor>;

DenseWeights dense_weights(
    const torch::nn::Module& model,
    const std::vector<Part>& parts);

/// Errors:  c10::ValueError naming a weight whose layer is not built.
int64_t dense_bytes(const DenseWeights& weights);

/// Copies of the values.
std::vector<DenseContent> dense_content(const DenseWeights& weights);

}  // namespace tessera::serving
