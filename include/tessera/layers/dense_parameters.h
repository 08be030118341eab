// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <vector>

namespace tessera {

/// The parameters of `model` that belong to no TPUEmbedding layer in it: no
/// virtual variables, and on host no tables. The small tables of a
/// PartialTPUEmbedding are dense parameters.
///
///   torch::optim::Adam dense(dense_parameters(*model), 1e-3);
///
/// The engine's tables are updated by backward() all the same. Each once, in the
/// order of model.parameters().
std::vector<at::Tensor> dense_parameters(const torch::nn::Module& model);

}  // namespace tessera
