// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

/// Describes a tensor, such as "Float of shape [2, 4]". The layout is added unless it is
/// strided, and the device unless it is the CPU.
std::string describe(const at::TensorOptions& options, at::IntArrayRef sizes);

/// Like the other describe(), or "no tensor" for an undefined tensor. Strides are added
/// if it is not contiguous. Messages thus show each property that a check may refuse.
std::string describe(const at::Tensor& tensor);

}  // namespace tessera
