// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>

namespace tessera::optim {

/// average = decay * average + (1 - decay) * value
inline void blend(at::Tensor& average, double decay, const at::Tensor& value) {
  average.mul_(decay).add_(value, 1.0 - decay);
}

/// 1 - decay^update. An average that starts at 0 has no bias after `update` updates if it
/// is divided by this.
inline double bias_correction(double decay, int64_t update) {
  return 1.0 - std::pow(decay, static_cast<double>(update));
}

}  // namespace tessera::optim
