// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera::pt2 {

/// The bytes of a file that torch.load(weights_only=True) reads as ((tensors...), {}):
/// the arguments and keyword arguments of a call. AOTInductor needs them.
/// Source:  torch/serialization.py. LibTorch's pickle_save() writes a dict that
///          torch.load refuses.
std::string sample_inputs_file(const std::vector<at::Tensor>& inputs);

}  // namespace tessera::pt2
