// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

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
  TESSERA_COMMON_OPTIONS;
  bool lazy = true;

  TESSERA_OPTIMIZER_FIELDS(SGD, learning_rate)
};

}  // namespace tessera::optim
