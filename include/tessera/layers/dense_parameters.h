// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <vector>

namespace tessera {

/// The parameters of `model` without those of its TPUEmbedding layers: without virtual
/// variables, and without tables on Strategy::host() or padded(). The small tables of a
/// PartialTPUEmbedding count as dense parameters.
///
///   torch::optim::Adam dense(dense_parameters(*model), 1e-3);
///
/// Each parameter appears once, in the order of model.parameters(). Tables with fused
/// strategies are not in the list, but backward() still updates them.
std::vector<at::Tensor> dense_parameters(const torch::nn::Module& model);

}  // namespace tessera
