// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/nadam.h>

#include <cstdint>

namespace tessera::optim {

/// The factors of Nadam's update number t = 1, 2, .... All rows have the same ones. Keras
/// keeps the product of mu as a float32 variable. Here, it is computed from t, so
/// checkpoints do not store it.
struct NadamFactors {
  double momentum = 0.0;  // mu(t + 1) / (1 - mu(1) * ... * mu(t + 1))
  double gradient = 1.0;  // (1 - mu(t)) / (1 - mu(1) * ... * mu(t))
  double velocity = 1.0;  // 1 / (1 - beta_2^t)
};

/// Takes the same time for every t.
NadamFactors nadam_factors(const Nadam& spec, int64_t update);

}  // namespace tessera::optim
