// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <string>

namespace tessera {

/// Describes a tensor, such as "Float of shape [2, 4]". The layout is added unless it is
/// strided, and the device unless it is the CPU.
std::string describe(const at::TensorOptions& options, at::IntArrayRef sizes);

/// Like the other describe(), or "no tensor" for an undefined tensor. Strides are added
/// if it is not contiguous. Messages thus show each property that a check may refuse.
std::string describe(const at::Tensor& tensor);

/// A number as messages show it, with six digits. A NaN has no sign: many operations of
/// x86 processors return a negative one, which would be printed as "-nan".
inline std::string number_in_message(double value) {
  return std::isnan(value) ? "NaN" : c10::str(value);
}

/// Returns the reason why LibTorch can't use a device. It is empty if LibTorch can.
std::string device_problem(const c10::Device& device);

}  // namespace tessera
