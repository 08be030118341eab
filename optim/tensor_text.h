// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

/// "Float of shape [2, 4]", and layout and device unless they are strided and cpu.
std::string describe(const at::TensorOptions& options, at::IntArrayRef sizes);

/// The same of a tensor, with the strides of one that is not contiguous, or "no
/// tensor". For errors: whatever a check may refuse shows.
std::string describe(const at::Tensor& tensor);

}  // namespace tessera
