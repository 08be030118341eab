// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>

namespace tessera::optim {

/// average = share * average + (1 - share) * value
inline void blend(at::Tensor& average, double share, const at::Tensor& value) {
  average.mul_(share).add_(value, 1.0 - share);
}

/// 1 - share^update. An average that starts at 0 has no bias after `update` updates if it
/// is divided by this.
inline double bias_correction(double share, int64_t update) {
  return 1.0 - std::pow(share, static_cast<double>(update));
}

}  // namespace tessera::optim
