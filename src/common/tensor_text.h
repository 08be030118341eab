// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

/// "Float of shape [2, 4]". Layout and device are added unless they are strided and
/// cpu.
std::string describe(const at::TensorOptions& options, at::IntArrayRef sizes);

/// The same for a tensor, or "no tensor" for an undefined one. Strides are added if it
/// is not contiguous. Messages thus show each property that a check may refuse.
std::string describe(const at::Tensor& tensor);

}  // namespace tessera
