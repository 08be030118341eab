// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizers/common_fields.h>

#include <cstdint>
#include <optional>

namespace tessera::optim {

// snippet: tests/docs/reference_optim_test.cpp SGD
/// Stochastic gradient descent.
///
///   weight -= learning_rate * gradient
///
///   TPUEmbedding embedding(
///       features,
///       SGD{.learning_rate = 0.1,
///           .clip_gradient_min = -1.0,
///           .clip_gradient_max = 1.0});
///
/// Source:  tf.tpu.experimental.embedding.SGD.
struct SGD {
  LearningRate learning_rate = 0.01;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;

  bool operator==(const SGD&) const = default;

  TESSERA_OPTIMIZER_FIELDS(SGD, learning_rate)
};

}  // namespace tessera::optim
