// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace tessera {

/// Returns the reason why LibTorch can't use a device. It is empty if LibTorch can.
std::string device_problem(const c10::Device& device);

}  // namespace tessera
