// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/schedule.h>

#include <cstdint>

/// A learning rate that falls linearly from `highest` to zero in `steps` steps.
inline tessera::optim::PolynomialDecay linear_decay_to_zero(
    double highest,
    int64_t steps) {
  return {
      .initial_learning_rate = highest,
      .decay_steps = static_cast<double>(steps),
      .end_learning_rate = 0.0};
}
