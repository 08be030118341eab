// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/test_util.h"

namespace tessera::test {

/// Compares the gradients of sum(function() * slopes) with central differences.
/// The slopes are random. `sources` must be leaves of doubles that require
/// gradients.
inline void expect_gradients(
    const std::function<at::Tensor()>& function,
    const std::vector<at::Tensor>& sources,
    double rtol = 1e-6) {
  constexpr double kStep = 1e-5;
  const at::Tensor output = function();
  const at::Tensor slopes = at::randn_like(output);
  for (const at::Tensor& source : sources) {
    source.mutable_grad() = at::Tensor();
  }
  (output * slopes).sum().backward();

  const at::NoGradGuard no_grad;
  const auto weighted_sum = [&] {
    return (function() * slopes).sum().item<double>();
  };
  for (const at::Tensor& source : sources) {
    ASSERT_EQ(source.scalar_type(), at::kDouble);
    const at::Tensor values = source.detach().view({-1});
    at::Tensor differences = at::empty_like(values);
    for (int64_t i = 0; i < values.numel(); ++i) {
      at::Tensor element = values[i];
      element.add_(kStep);
      const double above = weighted_sum();
      element.sub_(2 * kStep);
      const double below = weighted_sum();
      element.add_(kStep);
      differences[i] = (above - below) / (2 * kStep);
    }
    expect_close(
        source.grad().defined() ? source.grad() : at::zeros_like(source),
        differences.view(source.sizes()),
        rtol,
        /*atol=*/rtol / 100);
  }
}

}  // namespace tessera::test
