// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/copysign.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <cstdint>

namespace tessera::optim {

/// average = decay * average + (1 - decay) * value
inline void blend(at::Tensor& average, double decay, const at::Tensor& value) {
  average.mul_(decay).add_(value, 1.0 - decay);
}

/// The spacing of the numbers of a dtype, relative to a power of two.
inline double spacing_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 0x1p-52;
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return 0x1p-23;
  }
}

/// mean += (1 - decay) * deviation, where the deviation is value - mean. A step that is too
/// small for the dtype becomes one spacing of its numbers. Without this, the mean of equal
/// values would stop 0.5 / (1 - decay) spacings away from the value.
inline void move_mean(
    at::Tensor& mean,
    double decay,
    const at::Tensor& deviation) {
  const at::Tensor step = deviation * (1.0 - decay);
  const double spacing = decay < 1.0 ? spacing_of(mean.scalar_type()) : 0.0;
  // Between 0.5 and 1.5 spacings, so a sum is rounded to the next number.
  const at::Tensor least = mean.abs().mul_(0.506 * spacing);
  const at::Tensor limited =
      at::copysign(at::minimum(least, deviation.abs()), deviation);
  mean.add_(at::where(step.abs() < least, limited, step));
}

/// 1 - decay^update. An average that starts at 0 has no bias after `update` updates if it
/// is divided by this.
inline double bias_correction(double decay, int64_t update) {
  return 1.0 - std::pow(decay, static_cast<double>(update));
}

}  // namespace tessera::optim
